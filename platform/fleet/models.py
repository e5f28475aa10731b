from __future__ import annotations

from typing import ClassVar
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


class WorkerSample(models.Model):
    """How a worker was at one moment, as the overview shows it; kept for a day. Written by a periodic task.

    ``report`` holds the fields of :class:`fleet.dialects.report.Report`, its histograms as lists; it is empty where
    the worker had a ``problem``.
    """

    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="samples", db_index=False)
    at = models.DateTimeField()
    problem = models.CharField(max_length=500, blank=True)
    report = models.JSONField(default=dict)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=("worker", "-at"), name="sample_by_worker"),
            models.Index(fields=("at",), name="sample_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.worker} at {self.at:%Y-%m-%d %H:%M:%S}"


class PublicPrefix(models.Model):
    """A text that is no secret, such as a system prompt of the operators' own: all tenants' prompts that begin with it
    share what it was computed to. Written by :mod:`fleet.public_prefixes`; the workers forget theirs when they stop.

    ``source``: ``{"messages": […]}``, the beginning of chats, or ``{"prompt": "…"}``, that of completions; ``tokens``
    what it is under the weights of ``fingerprint``. It holds for the base model alone, or for what ``adapter`` stands
    for.
    """

    name = models.SlugField(max_length=64, unique=True)
    base_model = models.ForeignKey("tenants.BaseModel", on_delete=models.CASCADE, related_name="public_prefixes")
    adapter = models.ForeignKey("tenants.Adapter", on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    source = models.JSONField()
    tokens = models.JSONField()
    fingerprint = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "public prefixes"

    def __str__(self) -> str:
        return self.name
