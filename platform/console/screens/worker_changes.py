"""What an operator does to workers and base models. What ends something asks first."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.confirm import confirm
from console.fleet_forms import NewWorkerForm, WorkerForm
from console.forms import posted
from console.pages import At, page
from console.place import Place
from console.render import render
from console.screens.workers import others
from fleet import looks, registry, served_models
from fleet.models import Worker
from fleet.registry import Registered
from tenants import base_models
from tenants.counted import counted
from tenants.errors import NotFound
from tenants.models import BaseModel

_VERBS = {"drain": Worker.State.DRAINING, "activate": Worker.State.ACTIVE, "disable": Worker.State.DISABLED}
_DONE = {
    "drain": "Worker {} takes nothing new; what it runs ends there.",
    "activate": "Worker {} takes requests.",
    "disable": "Worker {} is disabled.",
}
_BUTTONS = {"drain": "Drain it", "activate": "Let it take requests", "disable": "Disable it"}


@page("workers/register", "worker-new", at=At.PLATFORM, post=True)
def register(request: HttpRequest, place: Place) -> HttpResponse:
    form = NewWorkerForm(posted(request))
    if request.method == "POST" and form.carry_out(
        lambda said: registry.register(
            place.actor, said["name"], url=said["url"], base_model=said["model"], state=said["state"], new=True
        )
    ):
        return _registered(request, place, form.result)
    context = {"form": form, "models": BaseModel.objects.exists()}
    return render(request, place, "console/worker_form.html", context)


@page("workers/named/<slug:name>/change", "worker-change", at=At.PLATFORM, post=True)
def change(request: HttpRequest, place: Place, name: str) -> HttpResponse:
    worker = registry.find(name)
    form = WorkerForm(worker, posted(request))
    if request.method == "POST" and form.carry_out(lambda said: registry.change(place.actor, worker, **form.changes())):
        return _registered(request, place, form.result)
    return render(request, place, "console/worker_form.html", {"form": form, "worker": worker, "models": True})


@page("workers/named/<slug:name>/<slug:verb>/ask", "worker-state", at=At.PLATFORM, post=True)
def set_state(request: HttpRequest, place: Place, name: str, verb: str) -> HttpResponse:
    worker = registry.find(name)
    if verb not in _VERBS:
        raise NotFound("page", request.path)
    return confirm(
        request,
        place,
        lambda: registry.set_state(place.actor, worker, _VERBS[verb]),
        title=f"{_BUTTONS[verb].replace('it', f'the worker {worker}', 1)}?",
        effects=_effects(worker, verb),
        button=_BUTTONS[verb],
        done=_DONE[verb].format(worker),
        back=place.url("worker", worker.name),
    )


@page("workers/named/<slug:name>/remove", "worker-remove", at=At.PLATFORM, post=True)
def remove(request: HttpRequest, place: Place, name: str) -> HttpResponse:
    worker = registry.find(name)
    kept = "Its process is not stopped: that is its operator's to do. It can be registered again."
    return confirm(
        request,
        place,
        lambda: registry.remove(place.actor, worker),
        title=f"Remove the worker {worker}?",
        effects=[*_effects(worker, "remove"), kept],
        button="Remove it",
        done=f"Worker {worker} is no longer known.",
        back=place.url("workers"),
    )


@page("workers/models/<str:name>/<slug:verb>", "model-state", at=At.PLATFORM, post=True)
def set_model_state(request: HttpRequest, place: Place, name: str, verb: str) -> HttpResponse:
    model = served_models.rows().get(pk=base_models.find(name).pk)
    if verb not in {"retire", "restore"}:
        raise NotFound("page", request.path)
    many = f"that concerns {counted(model.tenants, 'account')} and {counted(model.adapter_count, 'adapter')}"
    if verb == "retire":
        state, done = BaseModel.State.RETIRED, f"{model} is retired."
        effects = [
            f"From the next request on nobody can use {model}, alone or under an adapter: {many}.",
            f"What runs goes on to its end. {counted(model.worker_count, 'worker')} can then be stopped.",
            "Nothing is deleted: it can be restored.",
        ]
    else:
        state, done = BaseModel.State.ACTIVE, f"{model} can be used again."
        effects = [f"From the next request on {model} can be used again: {many}."]
    return confirm(
        request,
        place,
        lambda: base_models.set_state(place.actor, model, state),
        title=f"{verb.capitalize()} {model}?",
        effects=effects,
        button=f"{verb.capitalize()} it",
        done=done,
        back=place.url("workers"),
    )


def _registered(request: HttpRequest, place: Place, done: Registered) -> HttpResponse:
    messages.success(request, f"Worker {done.worker} is {'registered' if done.created else 'changed'}.")
    if done.problem is not None:
        messages.warning(request, f"It serves nothing now, and gets no requests until it does: {done.problem}.")
    return HttpResponseRedirect(place.url("worker", done.worker.name))


def _effects(worker: Worker, verb: str) -> list[str]:
    """What follows, with numbers as the workers were sampled last."""
    found = looks.sampled()
    if verb == "activate":
        return [f"Gateways send it requests for {worker.base_model} within seconds."]
    own = next((look.report for look in found if look.worker == worker), None)
    runs = counted(own.running, "request") if own is not None else "What it runs"
    waits = f" and {own.waiting} waiting" if own is not None and own.waiting else ""
    left, unknown = others(found, worker)
    effects = [
        f"When last asked it ran {runs}{waits}: they end there; it gets nothing new."
        if own is not None
        else "What it runs ends there; it gets nothing new."
    ]
    if left:
        effects.append(f"{counted(left, 'other worker')} then serve{'s' if left == 1 else ''} {worker.base_model}.")
    elif unknown:
        effects.append(
            f"It is not known whether another worker serves {worker.base_model}: {counted(unknown, 'other')} was not "
            "asked for two minutes. If none does, its requests are refused."
        )
    else:
        effects.append(f"No other worker serves {worker.base_model}: its requests are refused until one does.")
    return effects
