from __future__ import annotations

from typing import ClassVar

from django.db import models


class IdempotentRequest(models.Model):
    """What a mutation answered, for a client that sends it again with the same ``Idempotency-Key``.

    Written in the mutation's own transaction. Read back by nobody but the same caller. Kept for a day.
    """

    caller = models.CharField(max_length=100, help_text="who may have it back")
    key = models.CharField(max_length=255)
    fingerprint = models.BinaryField(max_length=32, help_text="sha256 of method, path and body")
    status = models.PositiveSmallIntegerField(default=0)
    body = models.BinaryField(default=b"", help_text="the JSON answer, without what is shown only once")
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=("caller", "key"), name="idempotency_key_once")]

    def __str__(self) -> str:
        return f"{self.caller} {self.key}"
