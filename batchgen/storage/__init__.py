"""Where things are kept: Postgres for the truth, an object store for the bytes."""
