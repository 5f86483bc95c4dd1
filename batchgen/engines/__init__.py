"""Engines and the process that holds one: nothing here knows Postgres, Celery or HTTP."""
