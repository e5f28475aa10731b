from __future__ import annotations

from typing import Any, ClassVar

from django.core.validators import RegexValidator
from django.db import models

from tenants.models.base_model import BaseModel
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned, TenantScoped


class NotDeleted(TenantScoped[Any]):
    """Deleted rows stay, because the ledger refers to them; whoever wants those too says ``with_deleted``."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(deleted_at=None)


class Adapter(TenantOwned):
    """A tenant's adapter: a name whose ``current`` version answers requests for ``<tenant>/<name>``, all but the share
    of them that its ``canary`` answers. Both are written by :mod:`tenants.releases` only.

    A deleted one keeps its row and gives its name free: the next adapter of that name is another row, which no share
    or restriction of the old one reaches.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="adapters")
    name = models.CharField(
        max_length=63,
        validators=[
            RegexValidator(r"\A[a-z0-9][a-z0-9._-]*\Z", "lower-case letters, digits, dots, underscores, hyphens")
        ],
    )
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="adapters")
    current = models.ForeignKey(
        "AdapterVersion", on_delete=models.PROTECT, null=True, blank=True, editable=False, related_name="+"
    )
    canary = models.ForeignKey(
        "AdapterVersion", on_delete=models.PROTECT, null=True, blank=True, editable=False, related_name="+"
    )
    canary_percent = models.PositiveSmallIntegerField(default=0, editable=False)
    auto_promote = models.BooleanField(default=True, editable=False, help_text="a new version is current once ready")
    pinned = models.BooleanField(default=False, editable=False, help_text="workers keep it loaded")
    created_at = models.DateTimeField(auto_now_add=True)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects: ClassVar[Any] = NotDeleted()
    with_deleted: ClassVar[Any] = TenantScoped()

    class Meta:
        ordering = ("tenant", "name")
        default_manager_name = "objects"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=("tenant", "name"), condition=models.Q(deleted_at=None), name="adapter_name_once_per_tenant"
            ),
            models.CheckConstraint(
                condition=models.Q(canary=None, canary_percent=0)
                | models.Q(canary__isnull=False, canary_percent__gte=1, canary_percent__lte=100),
                name="canary_has_a_share",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class AdapterVersion(TenantOwned):
    """One content of an adapter. A trigger (``tenants/sql/guards_versions.sql``) refuses to change it once it is ready;
    it may then only be deleted, which marks it. A number is never given out again.
    """

    class State(models.TextChoices):
        PENDING = "pending"
        CHECKED = "checked", "its files are right; a worker has yet to try it"
        READY = "ready"
        REJECTED = "rejected"

    tenant_path = "adapter__tenant"

    adapter = models.ForeignKey(Adapter, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField(help_text="1, 2, 3 … within the adapter")
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    digest = models.CharField(max_length=64, blank=True, help_text="hex sha256 of the content, once ready")
    report = models.JSONField(
        default=dict, help_text='when rejected: {"message", "field", "problems": [{"message", "field", "advice"}]}'
    )
    spec = models.JSONField(default=dict, help_text="targets, ranks and data type, as the check read them")
    num_bytes = models.PositiveBigIntegerField(default=0, help_text="of tensor data")
    stored_bytes = models.PositiveBigIntegerField(default=0, help_text="of its files; counts against the quota")
    golden = models.JSONField(null=True, blank=True, help_text="golden prompts and PEFT's answers, from the uploader")
    tries = models.PositiveSmallIntegerField(default=0, help_text="how often its check was begun or queued again")
    created_at = models.DateTimeField(auto_now_add=True)
    checked_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects: ClassVar[Any] = NotDeleted()
    with_deleted: ClassVar[Any] = TenantScoped()

    class Meta:
        ordering = ("adapter", "-number")
        default_manager_name = "objects"
        indexes: ClassVar = [models.Index(fields=("digest",), name="version_by_digest")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("adapter", "number"), name="version_number_once"),
            models.UniqueConstraint(
                fields=("adapter", "digest"),
                condition=models.Q(state="ready", deleted_at=None),
                name="same_content_same_version",
            ),
            models.CheckConstraint(
                condition=~models.Q(state="ready") | ~models.Q(digest=""), name="ready_version_has_digest"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter} v{self.number}"

    @property
    def problems(self) -> list[dict[str, str | None]]:
        """What was found wrong: ``message``, with ``field`` and ``advice`` where known. Empty unless rejected."""
        if "message" not in self.report:
            return []
        found: list[dict[str, str | None]] = self.report.get("problems") or [
            {"field": None, "advice": None, **self.report}
        ]
        return found


class AdapterAllowance(TenantOwned):
    """This tenant may use another tenant's adapter, under the owner's name for it."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="adapter_allowances")
    adapter = models.ForeignKey(Adapter, on_delete=models.CASCADE, related_name="allowances")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "adapter"), name="adapter_allowed_once"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} may use {self.adapter}"
