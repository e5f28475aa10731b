"""Forms about workers."""

from __future__ import annotations

from typing import Any

from django import forms

from console.edit_form import EditForm
from console.forms import Form
from console.model_field import ModelField
from fleet.models import Worker

STATES = (
    (Worker.State.ACTIVE, "active: takes requests"),
    (Worker.State.DRAINING, "draining: takes nothing new"),
    (Worker.State.DISABLED, "disabled: as if it were not there"),
)


class _Basics(Form):
    aliases = {"base_model": "model"}  # noqa: RUF012 - as in its base

    url = forms.CharField(
        label="Address",
        max_length=512,
        help_text="http://host:port as the gateways reach it. It is asked at once which model it serves.",
        widget=forms.TextInput(attrs={"placeholder": "http://10.0.0.5:8100", "inputmode": "url"}),
    )
    model = ModelField("A worker that serves other weights is refused.")
    state = forms.ChoiceField(choices=STATES, initial=Worker.State.ACTIVE)


class NewWorkerForm(_Basics):
    name = forms.CharField(max_length=64, help_text="Letters, digits, hyphens and underscores; logs and alerts say it.")
    field_order = ("name",)

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if Worker.objects.filter(name=name).exists():
            raise forms.ValidationError(f"There is a worker {name!r} already; it is changed on its own page.")
        return name


class WorkerForm(_Basics, EditForm):
    """To change a worker; its name stays."""

    def __init__(self, worker: Worker, *args: Any) -> None:
        initial = {"url": worker.url, "model": worker.base_model.name, "state": worker.state}
        super().__init__(*args, initial=initial)

    def changes(self) -> dict[str, Any]:
        """As :func:`fleet.registry.change` takes them."""
        return {"base_model" if name == "model" else name: value for name, value in self.changed().items()}
