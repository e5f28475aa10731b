from __future__ import annotations

from typing import Any, cast

from django import forms

from console.forms import Form
from console.limit_fields import limit_changes, limit_fields
from console.lines_field import LinesField
from console.sent_once import OnceForm
from tenants.callers import Role
from tenants.models import Member
from tenants.restrictions import names_of

_ROLES = [
    (str(Role.VIEWER), "viewer: reads what the account has"),
    (str(Role.DEVELOPER), "developer: also adapters, own keys, webhooks, batches"),
    (str(Role.OWNER), "owner: everything, members and other people's keys too"),
]
_EVERY, _SOME = "every", "some"
_MOST_MODELS = 1000


class Invite(OnceForm):
    email = forms.CharField(
        label="E-mail address",
        max_length=150,
        widget=forms.EmailInput(attrs={"autocomplete": "off"}),
        help_text="The person signs in with it. An earlier open invitation of this address is void then.",
    )
    role = forms.ChoiceField(label="Role", choices=_ROLES)


class _RoleAndModels(Form):
    role = forms.ChoiceField(label="Role", choices=_ROLES, help_text="Holds from the member's next call on.")
    scope = forms.ChoiceField(
        label="Models that the member's keys may use",
        choices=[(_EVERY, "All of the account's"), (_SOME, "Only those named here")],
        widget=forms.RadioSelect,
    )
    models = LinesField(
        label="Only these models",
        most=_MOST_MODELS,
        help_text="One a line, as requests name them: a base model, or owner/name of an adapter.",
    )

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if data.get("scope") == _SOME and not data.get("models") and "models" not in self.errors:
            self.add_error("models", "Name at least one model. To take all of them away, revoke the member's keys.")
        return data

    def only(self) -> list[str] | None:
        """What :func:`tenants.restrictions.restrict` takes."""
        return self.cleaned_data["models"] if self.cleaned_data["scope"] == _SOME else None

    def limits(self) -> dict[str, int | None]:
        return limit_changes(Member, self.cleaned_data)


MemberChange = cast("type[_RoleAndModels]", type("MemberChange", (_RoleAndModels,), dict(limit_fields(Member))))
"""Role, models, and a field for each limit."""


def now(member: Member) -> dict[str, Any]:
    """What :data:`MemberChange` starts from."""
    names = names_of(member)
    models = {"scope": _EVERY if names is None else _SOME, "models": names}
    return {"role": member.role, **models, **member.own_limits()}
