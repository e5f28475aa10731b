from __future__ import annotations

from typing import Any

from django import forms

from console.forms import Form
from console.model_field import ModelField

_KINDS = (("system", "the system prompt of chats"), ("prompt", "the beginning of completions"))


class PrefixForm(Form):
    aliases = {"messages": "text", "prompt": "text"}  # noqa: RUF012 - as in its base

    name = forms.CharField(max_length=64, help_text="Letters, digits, hyphens and underscores.")
    model = ModelField()
    adapter = forms.CharField(
        max_length=200,
        required=False,
        help_text="owner/name: for what this adapter stands for, instead of the base model alone.",
    )
    kind = forms.ChoiceField(choices=_KINDS, label="It is")
    text = forms.CharField(
        strip=False,
        widget=forms.Textarea(attrs={"rows": 8}),
        help_text="To the letter as requests send it. No secret: whoever uses the model can find out that it is used.",
    )

    def source(self) -> dict[str, Any]:
        """As :func:`fleet.public_prefixes.declare` takes it. Browsers send line ends as CR LF; requests have LF."""
        text = str(self.cleaned_data["text"]).replace("\r\n", "\n")
        if self.cleaned_data["kind"] == "prompt":
            return {"prompt": text}
        return {"messages": [{"role": "system", "content": text}]}
