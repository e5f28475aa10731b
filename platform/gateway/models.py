from __future__ import annotations

from django.db import models


class WsTicket(models.Model):
    """Opens one WebSocket for a browser that holds a key; see :mod:`gateway.tickets`. Only the hash is stored."""

    digest = models.BinaryField(primary_key=True, max_length=32)
    key = models.ForeignKey("tenants.ApiKey", on_delete=models.CASCADE, related_name="+")
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"ticket of key {self.key_id}"
