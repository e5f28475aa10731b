from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Coalesce
from django.utils import timezone

from tenants import keys
from tenants.models.key_state import works
from tenants.models.limits import Limits
from tenants.models.member import Member
from tenants.models.restrictions import Restrictions
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned, TenantQuerySet


class _Keys(TenantQuerySet):
    def working(self) -> Self:
        """Neither revoked nor expired at this moment: those whose :attr:`ApiKey.state` is ``active``."""
        return self.filter(works())


Keys = models.Manager.from_queryset(_Keys, "Keys")


class ApiKey(TenantOwned, Limits, Restrictions):
    """A tenant's key, for inference or for managing what the tenant has. Never both: a key that a program carries to
    generate text changes nothing. The secret itself is shown once and never stored; see :mod:`tenants.keys`.

    A key and its successors by rotation are one ``line``: they share their counters, and a trigger
    (``tenants/sql/guards_keys.sql``) keeps their limits and restrictions alike.
    """

    class Scope(models.TextChoices):
        INFERENCE = "inference"
        MANAGE = "manage"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="api_keys")
    member = models.ForeignKey(Member, on_delete=models.SET_NULL, null=True, blank=True, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True)
    scope = models.CharField(max_length=16, choices=Scope.choices, default=Scope.INFERENCE)
    public_id = models.CharField(max_length=32, unique=True, editable=False)
    digest = models.BinaryField(max_length=32, editable=False)
    pepper_version = models.PositiveSmallIntegerField(editable=False)
    first = models.ForeignKey(
        "self", on_delete=models.CASCADE, null=True, editable=False, related_name="later", db_index=False
    )
    line = models.GeneratedField(
        expression=Coalesce(models.F("first_id"), models.F("id")),
        output_field=models.BigIntegerField(),
        db_persist=True,
    )
    predecessor = models.OneToOneField(
        "self", on_delete=models.CASCADE, null=True, editable=False, related_name="successor"
    )
    allowed_addresses = ArrayField(
        models.CharField(max_length=43),
        null=True,
        blank=True,
        editable=False,
        help_text="networks as 203.0.113.0/24 from which alone it may be used; null: from anywhere",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    issued_by = models.CharField(
        max_length=16,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="the kind of actor that was shown its text; operator also where a key of theirs issued it",
    )
    playground_of = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        editable=False,
        related_name="+",
        db_index=False,
        help_text="who tries models with it while signed in; null: any other key",
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="to the minute")

    objects: ClassVar[Any] = Keys()  # type: ignore[assignment]  # scoped like its base's, with one method more

    class Meta:
        ordering = ("-created_at",)
        indexes: ClassVar = [
            models.Index(fields=("line",), name="key_by_line"),
            models.Index(
                fields=("playground_of", "tenant"), name="key_by_player", condition=~models.Q(playground_of=None)
            ),
        ]

    def __str__(self) -> str:
        return f"lpx_live_{self.public_id}_…"

    @property
    def state(self) -> str:
        """``active``, ``expired`` or ``revoked``, at this moment."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= timezone.now() else "active"

    @classmethod
    def issue(
        cls,
        tenant: Tenant,
        *,
        name: str = "",
        scope: str = Scope.INFERENCE,
        member: Member | None = None,
        expires_at: datetime | None = None,
        **fields: Any,
    ) -> tuple[ApiKey, keys.Secret]:
        """A new key of this tenant and its plain text, which exists nowhere else from now on.

        :param fields: limits, restrictions and ancestors.
        """
        generated, version = keys.generate(), keys.current_pepper()
        key = cls(
            tenant=tenant,
            member=member,
            name=name,
            scope=scope,
            public_id=generated.public_id,
            digest=keys.hash(generated.secret, version),
            pepper_version=version,
            expires_at=expires_at,
            **fields,
        )
        key.full_clean()
        key.save()
        return key, generated.secret
