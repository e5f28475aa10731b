"""Batches in a Celery process: lines of a file, each answered exactly as a live request is."""
