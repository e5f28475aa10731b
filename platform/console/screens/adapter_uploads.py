"""Adapters coming in: with the page's script part by part through the API, without it in one go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO
from uuid import UUID

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.datastructures import MultiValueDict

from console.confirm import confirm
from console.forms import Form
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from tenants import adapter_quotas, uploads
from tenants.callers import Role
from tenants.errors import AdapterRefused, Invalid, NotConfigured
from tenants.models import AdapterUpload, Tenant

_MOST_FILES = 20


class _Several(forms.ClearableFileInput):
    allow_multiple_selected = True


class _Files(forms.FileField):
    """All files that were chosen, by name."""

    widget = _Several(attrs={"multiple": True, "accept": ".json,.safetensors,.tar,.gz,.tgz"})

    def clean(self, data: Any, initial: Any = None) -> dict[str, UploadedFile[Any]]:
        several = (data if isinstance(data, list) else [data]) or [None]
        if len(several) > _MOST_FILES:
            raise forms.ValidationError(f"Choose at most {_MOST_FILES} files.")
        files: list[Any] = [forms.FileField.clean(self, one, initial) for one in several]
        return {file.name: file for file in files}


class _UploadForm(Form):
    aliases = {"adapter": "name", "files": "content"}  # noqa: RUF012

    name = forms.CharField(
        max_length=63,
        label="Name",
        help_text="Lower-case letters, digits, dots, underscores, hyphens. A name that exists gets a new version.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    base_model = forms.ChoiceField(label="Base model", required=False)
    content = _Files(
        label="Files",
        help_text="adapter_config.json and adapter_model.safetensors, with golden.json if you have it; "
        "or one .tar or .tar.gz that holds them.",
    )

    def __init__(self, tenant: Tenant, data: Any = None, files: MultiValueDict[str, Any] | None = None, **more: Any):
        super().__init__(data, files, **more)
        names = tenant.model_allowances.order_by("base_model__name").values_list("base_model__name", flat=True)
        choices = [("", "The adapter's own, or the only one you may use"), *((name, name) for name in names)]
        field = self.fields["base_model"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices


@page("adapters/-/upload", "adapter-upload", at=At.TENANT, role=Role.DEVELOPER, post=True)
def upload(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    tenant = place.tenant
    if request.method == "POST":
        form = _UploadForm(tenant, request.POST, request.FILES)
        if form.carry_out(lambda sent: _take_in(place, tenant, sent)):
            version = form.result.version
            return HttpResponseRedirect(place.url("adapter-version", form.result.name, version.number))
    else:
        form = _UploadForm(tenant, initial={"name": request.GET.get("name", "")[:63]})
    context = {
        "form": form,
        "models": tenant.model_allowances.exists(),
        "uploads": adapter_quotas.open_uploads(tenant),
        "most_bytes": settings.MAX_BODY_BYTES,
        "largest": json.dumps(uploads.MOST_BYTES),
        "room": adapter_quotas.room(tenant),
        "api": "/api/" if place.operator is None else f"/api/operator/tenants/{tenant.slug}/",
        "versions_url": place.url("adapter-version", "NAME", 0),
    }
    return render(request, place, "console/adapter_upload.html", context)


def _take_in(place: Place, tenant: Tenant, sent: Mapping[str, Any]) -> AdapterUpload:
    files: dict[str, BinaryIO] = {name: file.file for name, file in sent["content"].items()}
    try:
        return uploads.receive(
            place.actor, tenant, name=sent["name"], files=files, base_model=sent["base_model"] or None
        )
    except (AdapterRefused, NotConfigured) as error:
        raise Invalid(str(error), "files") from None


@page("adapters/-/uploads/<uuid:upload>/cancel", "upload-cancel", at=At.TENANT, role=Role.DEVELOPER, post=True)
def cancel_upload(request: HttpRequest, place: TenantPlace, upload: UUID) -> HttpResponse:
    tenant = place.tenant
    found = uploads.find(tenant, upload)
    return confirm(
        request,
        place,
        lambda: uploads.cancel(place.actor, tenant, upload),
        title=f"Give the upload of {found.name} up?",
        effects=["What was sent of it so far is removed. Versions that are there already stay."],
        button="Give it up",
        done=f"The upload of {found.name} is given up.",
        back=place.url("adapters"),
    )
