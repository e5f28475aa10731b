from __future__ import annotations

from django.db import models


class WsTicket(models.Model):
    """Opens one WebSocket for a browser that holds a key; see :mod:`gateway.tickets`. Only the hash is stored.

    ``session`` and ``password`` are of the :class:`~tenants.visits.Visit`, where somebody signed in asked for it.
    """

    digest = models.BinaryField(primary_key=True, max_length=32)
    key = models.ForeignKey("tenants.ApiKey", on_delete=models.CASCADE, related_name="+")
    expires_at = models.DateTimeField(db_index=True)
    session = models.CharField(max_length=40, null=True)  # noqa: DJ001 - a ticket of no session is none of an empty one
    password = models.BinaryField(max_length=32, null=True)

    def __str__(self) -> str:
        return f"ticket of key {self.key_id}"
