from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.db import transaction
from django.http import HttpRequest, QueryDict

from tenants.errors import Conflict, Forbidden, Invalid, NotFound, TenantsError


def posted(request: HttpRequest) -> QueryDict | None:
    """What a form of this request is about: ``None`` where none was sent, which is not the same as an empty one."""
    return request.POST if request.method == "POST" else None


class Form(forms.Form):
    """A form whose rules are the domain's: what :mod:`tenants` refuses stands beside the field at fault."""

    aliases: dict[str, str] = {}  # noqa: RUF012 - Django's forms collect class attributes of their own
    """Fields by what the domain calls them, where that is not the field's own name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)

    def carry_out(self, act: Callable[[dict[str, Any]], Any]) -> bool:
        """Whether the form was right and ``act(what is handed on)`` went through; ``result`` is what it returned."""
        self.result: Any = None
        if not self.is_valid():
            return False
        try:
            with transaction.atomic():
                self.result = act(self.handed_on())
        except (Invalid, Conflict, NotFound, Forbidden) as error:
            field = self._field(error)
            self.add_error(field, str(error) if field is None else _words(error))
            return False
        return True

    def handed_on(self) -> dict[str, Any]:
        """What the form says to the domain."""
        return self.cleaned_data

    def _field(self, error: TenantsError) -> str | None:
        param: str = getattr(error, "param", None) or ""
        name = self.aliases.get(param, param)
        return name if name in self.fields else None


def _words(error: TenantsError) -> str:
    """As somebody reads them beside the field: without what programs call it."""
    text, param = str(error), getattr(error, "param", "")
    if text.startswith(f"{param}: "):
        text = text.removeprefix(f"{param}: ")
        word = text.partition(" ")[0].replace("-", "")
        return text[:1].upper() + text[1:] if word.isalpha() else text
    return f"It{text.removeprefix(param)}" if text.startswith(f"{param} ") else text
