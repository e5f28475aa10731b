"""Forms that make something which must not be made twice, such as a key whose text is shown once."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import uuid4

from django import forms
from django.http import HttpRequest

from console.forms import Form
from console.place import TenantPlace
from tenants.errors import Conflict
from tenants.once import REUSED, Repeated, once

_OUTDATED = "This form was out of date. Look at what it says, and send it again."
_OTHERWISE = (
    "This form was sent before, with other words, and that went through. Look whether what it made is what you want; "
    "sent again as it is now, it makes another one."
)


def _fresh() -> str:
    return uuid4().hex


class OnceForm(Form):
    """A form that is carried out once, however often it is sent: by a double click, or by loading the page again."""

    once = forms.CharField(widget=forms.HiddenInput(attrs={"autocomplete": "off"}), required=False, initial=_fresh)

    def carry_out_once(
        self, request: HttpRequest, place: TenantPlace, act: Callable[[dict[str, Any]], tuple[str, Any]]
    ) -> bool:
        """As :meth:`~console.forms.Form.carry_out`. Afterwards ``made`` names what was made, and ``result`` is the
        rest of what ``act`` returned: ``None`` where it had been made when the form came for the first time.

        :param act: returns the name of what it made, which is kept for a day, and what is shown of it now.
        """
        caller = place.caller
        self.made = ""
        if self.is_valid() and not self._has_token():
            self.add_error(None, _OUTDATED)

        def act_once(cleaned: dict[str, Any]) -> tuple[str, Any]:
            try:
                found = once(caller.name, f"form:{cleaned['once']}", _fingerprint(request), lambda: act(cleaned), _kept)
            except Conflict as error:
                if error.code == REUSED:
                    self._renew()
                    raise Conflict(_OTHERWISE) from None
                raise
            return (json.loads(found.body)["made"], None) if isinstance(found, Repeated) else found

        if not self.carry_out(act_once):
            return False
        self.made, self.result = self.result
        return True

    def _has_token(self) -> bool:
        token = str(self.data.get("once", ""))
        if token.isascii() and token.isalnum() and len(token) <= 64:
            return True
        self._renew()
        return False

    def _renew(self) -> None:
        said: Any = self.data
        said = said.copy()
        said["once"] = _fresh()
        self.data = said


def _fingerprint(request: HttpRequest) -> bytes:
    """Of where the form was sent and all that it says."""
    said = sorted((name, values) for name, values in request.POST.lists() if name != "csrfmiddlewaretoken")
    return sha256(json.dumps([request.path, said]).encode()).digest()


def _kept(result: tuple[str, Any]) -> tuple[int, bytes]:
    return 200, json.dumps({"made": result[0]}).encode()
