"""The tenant-facing API, and the project that ties the apps together.

The Celery application is bound here, so that ``shared_task`` finds it in every process that loads Django.
"""

from gateway.celery import app as celery

__all__ = ["celery"]
