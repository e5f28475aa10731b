from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from console.sent_once import OnceForm
from tenants import batches, files
from tenants.callers import Caller, Role
from tenants.models import Batch, File

_SHOWN = 100
"""Files and keys that one can choose from, the newest ones."""


class _BatchForm(OnceForm):
    aliases = {"input_file_id": "known"}  # noqa: RUF012

    file = forms.FileField(
        label="A file of requests",
        required=False,
        help_text="JSON Lines: one request a line, with custom_id, method, url and body.",
        widget=forms.FileInput(attrs={"accept": ".jsonl,.json,.txt"}),
    )
    known = forms.ChoiceField(label="Or a file that was uploaded before", required=False)
    endpoint = forms.ChoiceField(
        choices=[(endpoint, endpoint) for endpoint in batches.ENDPOINTS], help_text="As in the url of every line."
    )
    key = forms.TypedChoiceField(
        coerce=int, label="Key", help_text="The batch runs under its limits, restrictions and prices, and ends with it."
    )

    def __init__(self, caller: Caller, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        known = File.objects.filter(
            tenant=caller.tenant, purpose=File.Purpose.BATCH, expires_at__gt=timezone.now()
        ).order_by("-pk")[:_SHOWN]
        self._choose("known", [("", "–"), *((file.pk, f"{file.filename} ({file.pk})") for file in known)])
        keys = batches.keys_for(caller).order_by("-pk")[:_SHOWN]
        self._choose("key", [(key.pk, f"{key.name or 'unnamed'} ({key})") for key in keys])

    def _choose(self, name: str, choices: list[tuple[Any, str]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def clean(self) -> dict[str, Any]:
        sent: dict[str, Any] = super().clean() or {}
        if bool(sent.get("file")) == bool(sent.get("known")) and "file" not in self.errors:
            self.add_error("file", "Choose a file to send, or one that was uploaded before; one of the two.")
        return sent


@page("batches/-/new", "batch-new", at=At.TENANT, role=Role.DEVELOPER, post=True)
def create_batch(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    caller = place.caller
    sent = (request.POST, request.FILES) if request.method == "POST" else ()
    form = _BatchForm(caller, *sent)

    def act(values: dict[str, Any]) -> tuple[str, Any]:
        made = _create(place, caller, values)
        return made.pk, made

    if request.method == "POST" and form.carry_out_once(request, place, act):
        if form.result is None:
            messages.info(request, "This form was sent before, and made this batch. Open a new one to make another.")
        else:
            messages.success(request, "The batch is made. It is taken up within seconds.")
        return HttpResponseRedirect(place.url("batch", form.made))
    context = {
        "form": form,
        "keys": batches.keys_for(caller).exists(),
        "most_bytes": min(settings.MAX_BODY_BYTES, settings.MAX_FILE_BYTES),
        "largest_file": settings.MAX_FILE_BYTES,
    }
    return render(request, place, "console/batch_new.html", context)


def _create(place: Place, caller: Caller, sent: dict[str, Any]) -> Batch:
    upload: UploadedFile[Any] | None = sent["file"]
    file_id = sent["known"] if upload is None else _received(place, caller, upload).pk
    key = batches.keys_for(caller).get(pk=sent["key"])
    return batches.create(place.actor, key, input_file_id=file_id, endpoint=sent["endpoint"])


def _received(place: Place, caller: Caller, upload: UploadedFile[Any]) -> File:
    path = files.incoming()
    try:
        with path.open("xb") as copy:
            for chunk in upload.chunks():
                copy.write(chunk)
        name = "".join(character for character in upload.name or "" if character.isprintable())
        return files.receive(place.actor, caller.tenant, path, name[:255] or "upload.jsonl", files.KEPT)
    finally:
        path.unlink(missing_ok=True)
