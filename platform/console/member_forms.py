from __future__ import annotations

from typing import Any

from django import forms

from console.limit_fields import limit_changes, limit_fields
from console.restriction_form import RestrictionForm
from console.sent_once import OnceForm
from tenants.callers import Role
from tenants.models import Member

_ROLES = [
    (str(Role.VIEWER), "viewer: reads what the account has"),
    (str(Role.DEVELOPER), "developer: also adapters, own keys, webhooks, batches"),
    (str(Role.OWNER), "owner: everything, members and other people's keys too"),
]


class Invite(OnceForm):
    email = forms.CharField(
        label="E-mail address",
        max_length=150,
        widget=forms.EmailInput(attrs={"autocomplete": "off"}),
        help_text="The person signs in with it. An earlier open invitation of this address is void then.",
    )
    role = forms.ChoiceField(label="Role", choices=_ROLES)


class MemberChange(RestrictionForm):
    """Role, models, and a field for each limit."""

    role = forms.ChoiceField(label="Role", choices=_ROLES, help_text="Holds from the member's next call on.")
    field_order = ("role", "scope", "models")
    none_named = "Name at least one model. To take all of them away, revoke the member's keys."

    def __init__(self, member: Member, *args: Any) -> None:
        super().__init__(member, *args, initial={"role": member.role, **member.own_limits()})
        self.fields["scope"].label = "Models that the member's keys may use"
        self.fields |= limit_fields(Member)

    def limits(self) -> dict[str, int | None]:
        """Those that were changed."""
        return limit_changes(Member, self.changed())
