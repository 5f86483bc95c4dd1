"""Alembic migrations: `batchgen db upgrade` runs them."""
