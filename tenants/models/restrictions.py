from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models


class Restrictions(models.Model):
    """Which of its tenant's models a key or member may use; ``null``: all of them.

    ``only_models`` (ids of base models) is about base models alone; under its adapters a base model may be used by
    whoever may use the adapter. An id whose row is gone allows nothing: ids are not given out twice.
    """

    only_models = ArrayField(models.BigIntegerField(), null=True, blank=True, editable=False)
    only_adapters = ArrayField(models.BigIntegerField(), null=True, blank=True, editable=False)

    class Meta:
        abstract = True
