"""Batches: everybody's at the platform; at a tenant its own, with what they wrote."""

from __future__ import annotations

from typing import Any, cast

from django.db.models import Q
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from console.confirm import confirm
from console.listing import listing, searched
from console.pages import At, page
from console.place import Place, TenantPlace
from console.render import render
from tenants import batches, files, payloads
from tenants.callers import Role
from tenants.errors import Forbidden, NotFound
from tenants.models import Batch, File, Tenant


@page("batches", "batches")
def list_batches(request: HttpRequest, place: Place) -> HttpResponse:
    rows = place.rows(Batch).select_related("tenant", "key")
    query = searched(request)
    if query:
        wanted = Q(pk=query) | Q(status=query.lower().replace(" ", "_")) | Q(input_file_id=query)
        if place.tenant is None:
            wanted |= Q(tenant__slug=query)
        rows = rows.filter(wanted)
    shown = listing(request, rows)
    context = {"listing": shown, "running": any(batch.status in Batch.UNFINISHED for batch in shown.items)}
    return render(request, place, "console/batches.html", context)


@page("batches/<str:batch_id>", "batch", at=At.TENANT)
def show_batch(request: HttpRequest, place: TenantPlace, batch_id: str) -> HttpResponse:
    tenant = place.tenant
    batch = batches.find(tenant, batch_id)
    context = {
        "batch": batch,
        "done": batch.completed + batch.failed,
        "running": batch.status in Batch.UNFINISHED,
        "files": _files(tenant, batch),
        "readable": place.may(Role.DEVELOPER) and payloads.may_read(place.actor, tenant),
        "cancellable": batches.can_be_cancelled(batch) and _may_change(place, batch),
    }
    return render(request, place, "console/batch.html", context)


def _files(tenant: Tenant, batch: Batch) -> list[tuple[str, str, File | None]]:
    """What the batch names: what it is, the page that sends it, and its row unless it is gone."""
    named = {
        "Input": ("batch-input", batch.input_file_id),
        "Answers": ("batch-output", batch.output_file_id),
        "Failed lines": ("batch-failures", batch.error_file_id),
    }
    there = File.objects.filter(tenant=tenant).in_bulk([file_id for _, file_id in named.values() if file_id])
    return [(title, name, there.get(file_id)) for title, (name, file_id) in named.items() if file_id]


def _may_change(place: TenantPlace, batch: Batch) -> bool:
    try:
        batches.require_own(place.caller, batch.pk)
    except Forbidden:
        return False
    return True


@page("batches/<str:batch_id>/cancel", "batch-cancel", at=At.TENANT, role=Role.DEVELOPER, post=True)
def cancel_batch(request: HttpRequest, place: TenantPlace, batch_id: str) -> HttpResponse:
    """Owners cancel any batch of the account, developers those of their own keys."""
    tenant, caller = place.tenant, place.caller
    batch = batches.find(tenant, batch_id)
    done, left = batch.completed + batch.failed, max(batch.total - batch.completed - batch.failed, 0)
    effects = [
        f"{left} of its {batch.total} requests are not done yet; they are not answered and not billed."
        if batch.total
        else "Its input is being checked; nothing of it is answered or billed.",
        f"What is done ({done}) is delivered and stays billed.",
        "It cannot be taken up again.",
    ]
    if not _may_change(place, batch):
        effects.append("It runs under another's key: only an owner of the account can cancel it.")

    def act() -> None:
        batches.require_own(caller, batch_id)
        batches.cancel(place.actor, tenant, batch_id)

    return confirm(
        request,
        place,
        act,
        title="Cancel this batch?",
        effects=effects,
        button="Cancel the batch",
        done="The batch is being cancelled.",
        back=place.url("batch", batch_id),
    )


@page("batches/<str:batch_id>/input", "batch-input", at=At.TENANT, role=Role.DEVELOPER)
def send_input(request: HttpRequest, place: TenantPlace, batch_id: str) -> HttpResponse:
    batch = batches.find(place.tenant, batch_id)
    return _sent(place, batch.input_file_id)


@page("batches/<str:batch_id>/output", "batch-output", at=At.TENANT, role=Role.DEVELOPER)
def send_output(request: HttpRequest, place: TenantPlace, batch_id: str) -> HttpResponse:
    batch = batches.find(place.tenant, batch_id)
    return _sent(place, batch.output_file_id)


@page("batches/<str:batch_id>/failures", "batch-failures", at=At.TENANT, role=Role.DEVELOPER)
def send_failures(request: HttpRequest, place: TenantPlace, batch_id: str) -> HttpResponse:
    batch = batches.find(place.tenant, batch_id)
    return _sent(place, batch.error_file_id)


def _sent(place: TenantPlace, file_id: str | None) -> HttpResponse:
    if file_id is None:
        raise NotFound("file", "of this batch yet")
    file = files.find(place.tenant, file_id)
    payloads.open_file(place.caller, file)
    answer: Any = StreamingHttpResponse(
        files.chunks(files.content_path(file)),
        content_type="application/octet-stream",
        headers={
            "Content-Length": str(file.num_bytes),
            "Content-Disposition": f'attachment; filename="{file.pk}.jsonl"',
        },
    )
    return cast(HttpResponse, answer)  # Django serves what they both are
