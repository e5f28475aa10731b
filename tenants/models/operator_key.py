from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Self

from django.db import models

from tenants import keys
from tenants.models.key_state import works


class _Keys(models.QuerySet[Any]):
    def working(self) -> Self:
        """Neither revoked nor expired at this moment."""
        return self.filter(works())


class OperatorKey(models.Model):
    """An operator's key to ``/api/operator/…``: all tenants, no inference. Its text is shown once and never stored."""

    name = models.CharField(max_length=100, unique=True, help_text="who or what uses it; the audit log says so")
    public_id = models.CharField(max_length=32, unique=True, editable=False)
    digest = models.BinaryField(max_length=32, editable=False)
    pepper_version = models.PositiveSmallIntegerField(editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="to the minute")

    objects: ClassVar[Any] = models.Manager.from_queryset(_Keys)()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def issue(cls, name: str, *, expires_at: datetime | None = None) -> tuple[OperatorKey, keys.Secret]:
        """A new key and its plain text, which exists nowhere else from now on."""
        generated, version = keys.generate(keys.OPERATOR_PREFIX), keys.current_pepper()
        key = cls(
            name=name,
            public_id=generated.public_id,
            digest=keys.hash(generated.secret, version),
            pepper_version=version,
            expires_at=expires_at,
        )
        key.full_clean()
        key.save()
        return key, generated.secret
