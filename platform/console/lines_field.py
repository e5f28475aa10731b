from __future__ import annotations

import re
from typing import Any

from django import forms


class LinesField(forms.CharField):
    """A list of names or addresses: one a line, or with spaces or commas between; ``None`` where there is none.

    :param most: how many; each at most 210 characters long.
    """

    def __init__(self, *, most: int, placeholder: str = "", **kwargs: Any) -> None:
        self.most = most
        attrs = {"rows": 3, "spellcheck": "false"} | ({"placeholder": placeholder} if placeholder else {})
        super().__init__(required=False, max_length=210 * most, widget=forms.Textarea(attrs=attrs), **kwargs)

    def clean(self, value: Any) -> list[str] | None:
        found = list(dict.fromkeys(word for word in re.split(r"[\s,]+", super().clean(value)) if word))
        if len(found) > self.most:
            raise forms.ValidationError(f"There are {len(found)}; {self.most} are the most.")
        return found or None

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value
