"""The Celery application: a control worker, and a device worker for each device.

Control worker: ingest, finalize, sweep. Device worker: claims shards and keeps an engine busy with
them.
"""
