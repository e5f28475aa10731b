"""Forms of a tenant's keys. What they may say is :mod:`tenants.key_ring`'s to decide."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from django import forms

from console.duration_field import DurationField
from console.forms import Form
from console.limit_fields import limit_changes, limit_fields
from console.lines_field import LinesField
from console.moment_field import MomentField
from console.place import TenantPlace
from console.restriction_form import EVERY, MOST_MODELS, SCOPES, RestrictionForm
from console.sent_once import OnceForm
from tenants import key_ring
from tenants.addresses import MOST as MOST_NETWORKS
from tenants.callers import Role
from tenants.models import ApiKey, Member

OVERLAPS = (
    (timedelta(0), "None: the present key is revoked at once"),
    (timedelta(hours=1), "1 hour"),
    (timedelta(hours=6), "6 hours"),
    (key_ring.OVERLAP, "24 hours"),
    (timedelta(days=3), "3 days"),
    (timedelta(days=7), "7 days"),
    (key_ring.MOST_OVERLAP, f"{key_ring.MOST_OVERLAP.days} days"),
)


class KeyForm(Form):
    """What can be said of a key when it is issued, and changed later."""

    aliases = {"addresses": "networks"}  # noqa: RUF012 - as in Form

    name = forms.CharField(
        max_length=100, required=False, help_text="What it is for, such as the machine or program that carries it."
    )
    expires_at = MomentField(label="Ends at", help_text="Empty: it never ends by itself.")
    models = LinesField(
        most=MOST_MODELS,
        placeholder="every model that the account may use",
        help_text="One name a line, such as acme/pirate: the only models and adapters it may use.",
    )
    networks = LinesField(
        label="Addresses",
        most=MOST_NETWORKS,
        placeholder="from anywhere",
        help_text="One a line, such as 203.0.113.7 or 2001:db8::/32: from these alone it may be used.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields.update(limit_fields(ApiKey))
        self.order_fields(["name", "scope", "member", "expires_at", "models", "networks"])

    @property
    def plain(self) -> list[forms.BoundField]:
        """The fields that nearly every key needs."""
        limits = limit_fields(ApiKey)
        return [field for field in self.visible_fields() if field.name not in limits]

    @property
    def limits(self) -> list[forms.BoundField]:
        return [self[name] for name in limit_fields(ApiKey)]

    @property
    def limits_open(self) -> bool:
        """Whether there is something in them to look at."""
        return any(field.value() not in (None, "") or field.errors for field in self.limits)


class IssueForm(KeyForm, OnceForm):
    scope = forms.ChoiceField(
        label="For",
        choices=[
            (ApiKey.Scope.INFERENCE, "inference: it generates text"),
            (ApiKey.Scope.MANAGE, "manage: it opens the management API"),
        ],
        help_text="No key does both, so that what a program carries to generate text changes nothing.",
    )
    member = forms.ChoiceField(
        label="Whose",
        required=False,
        help_text="A member's key acts with the member's role and within the member's limits, and ends with the "
        "membership.",
    )

    def __init__(self, place: TenantPlace, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._place = place
        if place.may(Role.OWNER):
            rows = place.rows(Member).select_related("user").order_by("user__username")
            self._members = {str(row.public_id): row for row in rows}
            people = [(id, f"{row.user} ({row.role})") for id, row in self._members.items()]
            self.fields["member"].choices = [("", "the account as a whole"), *people]  # type: ignore[attr-defined]
        else:
            del self.fields["member"]

    def wanted(self, cleaned: Mapping[str, Any]) -> key_ring.Wanted:
        caller = self._place.caller
        member = self._members.get(cleaned["member"]) if "member" in self.fields else caller.member
        return key_ring.Wanted(
            name=cleaned["name"],
            scope=cleaned["scope"],
            member=member,
            expires_at=cleaned["expires_at"],
            models=cleaned["models"],
            networks=cleaned["networks"],
            limits=limit_changes(ApiKey, cleaned),
        )


class ChangeForm(RestrictionForm, KeyForm):
    """Only what somebody changed in it is changed."""

    def __init__(self, key: ApiKey, *args: Any) -> None:
        end = key.expires_at
        initial = {
            "name": key.name,
            "expires_at": None if end is None else end.replace(second=0, microsecond=0),
            "networks": key.allowed_addresses,
            **key.own_limits(),
        }
        super().__init__(key, *args, initial=initial)
        whose = "account" if key.member_id is None else "member"
        scope = cast(forms.ChoiceField, self.fields["scope"])
        scope.label = "Models that it may use"
        scope.choices = [(each, f"All that the {whose} may" if each == EVERY else words) for each, words in SCOPES]
        self.order_fields(["name", "expires_at", "scope", "models", "networks"])

    def changes(self) -> dict[str, Any]:
        """As :func:`tenants.key_ring.change` takes them."""
        changed = self.changed()
        changes = {name: changed[name] for name in ("name", "expires_at", "networks") if name in changed}
        limits = limit_changes(ApiKey, changed)
        return changes | self.restriction() | ({"limits": limits} if limits else {})


class RotateForm(OnceForm):
    aliases = {"overlap_seconds": "overlap"}  # noqa: RUF012 - as in Form

    overlap = DurationField(
        OVERLAPS,
        label="The present key goes on working for",
        initial=key_ring.OVERLAP,
        help_text="Time to put the new key where the present one is. Both share their limits and what is used of them.",
    )
    expires_at = MomentField(
        label="The new key ends at",
        help_text="Empty: it lives as long from now as the present one was given.",
    )

    def rotation(self, cleaned: Mapping[str, Any]) -> dict[str, Any]:
        """As :func:`tenants.key_ring.rotate` takes it."""
        end: datetime | None = cleaned["expires_at"]
        return {"overlap": cleaned["overlap"], "expires_at": end}
