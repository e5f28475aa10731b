"""Which models a member or key may use, in a form: all, or only those named."""

from __future__ import annotations

from typing import Any

from django import forms

from console.edit_form import EditForm
from console.lines_field import LinesField
from tenants.models import ApiKey, Member
from tenants.restrictions import names_of

EVERY, SOME = "every", "some"
SCOPES = ((EVERY, "All of the account's"), (SOME, "Only those named here"))
MOST_MODELS = 1000
_GONE = (
    "The models that it was restricted to are gone, so nothing can be used now. Name others, or choose all to lift the "
    "restriction."
)


class RestrictionForm(EditForm):
    """An empty list of names alone would not say whether everything may be used or, once the named models are gone,
    nothing.
    """

    none_named = "Name at least one model."

    scope = forms.ChoiceField(choices=SCOPES, widget=forms.RadioSelect)
    models = LinesField(
        label="Only these models",
        most=MOST_MODELS,
        help_text="One a line, as requests name them: a base model, or owner/name of an adapter.",
    )

    def __init__(self, holder: Member | ApiKey, *args: Any, initial: dict[str, Any], **kwargs: Any) -> None:
        names = names_of(holder)
        now = {"scope": EVERY if names is None else SOME, "models": names}
        super().__init__(*args, initial=initial | now, **kwargs)
        if names == []:
            self.fields["models"].help_text = _GONE

    def clean(self) -> dict[str, Any]:
        """What nobody touched may name models that are gone."""
        data, changed = super().clean(), self.changed()
        if "models" in self.errors:
            return data
        if data.get("scope") == SOME and not data.get("models") and self._restricts(changed):
            self.add_error("models", self.none_named)
        if data.get("scope") == EVERY and changed.get("models"):
            self.add_error("models", "All models are chosen above: choose only those named here, or name none.")
        return data

    def restriction(self) -> dict[str, list[str] | None]:
        """``models`` as :func:`tenants.restrictions.restrict` takes them; empty where nobody changed them."""
        if not self._restricts(self.changed()):
            return {}
        return {"models": self.cleaned_data["models"] if self.cleaned_data["scope"] == SOME else None}

    @staticmethod
    def _restricts(changed: dict[str, Any]) -> bool:
        return not changed.keys().isdisjoint({"scope", "models"})
