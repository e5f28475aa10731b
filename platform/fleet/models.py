from __future__ import annotations

from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import models


def validate_worker_url(url: str) -> None:
    """``http(s)://host[:port]`` and nothing after it; raises ``ValidationError``."""
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise ValidationError("not a URL", code="invalid") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_ok:
        raise ValidationError("has to be http://host:port or https://host:port", code="invalid")
    if parts.username or parts.password or parts.query or parts.fragment or parts.path not in {"", "/"}:
        raise ValidationError("has to be a bare address: no user, path or query", code="invalid")


class Worker(models.Model):
    """One replica of one base model, reachable at ``url``.

    ``draining``: finishes what it runs and gets nothing new. ``disabled``: as if it were not there.
    """

    class State(models.TextChoices):
        ACTIVE = "active"
        DRAINING = "draining"
        DISABLED = "disabled"

    class Dialect(models.TextChoices):
        NATIVE = "native"

    name = models.SlugField(max_length=64, unique=True)
    url = models.CharField(max_length=512, validators=[validate_worker_url])
    base_model = models.ForeignKey("tenants.BaseModel", on_delete=models.PROTECT, related_name="workers")
    dialect = models.CharField(max_length=32, choices=Dialect, default=Dialect.NATIVE)
    state = models.CharField(max_length=16, choices=State, default=State.ACTIVE)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name
