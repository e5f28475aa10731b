"""Forms as a browser sends them: with everything that the page showed in its fields, the hidden ones included."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.test import Client


def opened(client: Client, address: str) -> dict[str, Any]:
    """What the form at this address would send if nobody touched it."""
    answer = client.get(address)
    assert answer.status_code == 200
    return held(answer)


def held(answer: Any) -> dict[str, Any]:
    """What the form of an answer would send, also one that was refused."""
    reader = _Reader()
    reader.feed(answer.content.decode())
    found = max(reader.forms, key=len)
    found.pop("csrfmiddlewaretoken", None)
    return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, Any]] = []
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        name, value = said.get("name") or "", said.get("value") or ""
        if tag == "form":
            self.forms.append({})
        elif tag == "select":
            self._select = name
        elif tag == "textarea":
            self._area = name
            self.forms[-1][name] = ""
        elif tag == "option" and self._select and ("selected" in said or self._select not in self.forms[-1]):
            self.forms[-1][self._select] = value
        elif tag == "input" and name and self.forms:
            self._put_in(self.forms[-1], said.get("type"), name, value, "checked" in said)

    def _put_in(self, form: dict[str, Any], kind: str | None, name: str, value: str, checked: bool) -> None:
        if kind == "checkbox" and checked:
            form.setdefault(name, []).append(value)
        elif kind not in {"radio", "checkbox"} or checked:
            form[name] = value

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
        if tag == "textarea" and self._area:
            # a browser leaves out the line break after the tag, and sends the others as these
            text = self.forms[-1][self._area].removeprefix("\r\n").removeprefix("\n")
            self.forms[-1][self._area] = text.replace("\r\n", "\n").replace("\n", "\r\n")
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.forms[-1][self._area] += data
