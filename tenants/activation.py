"""The gate before a version may answer: tried on golden prompts, with the adapter and without.

The files were right (state ``checked``). A worker of the base model now computes log-probabilities on a few fixed
prompts, and the version becomes ``ready`` if the adapter gives finite numbers, changes something, and comes close to
what PEFT computed, where the uploader sent that (``golden.json``); else ``rejected``. Without a worker it waits, and a
periodic task tries again. The trial itself is :mod:`fleet.trial`; this module decides and writes down.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import current_app
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone
from kombu.exceptions import OperationalError

from inference.adapter_format import store_path
from inference.golden import Distance, Golden, Scores, distance
from tenants import adapters, audit, releases, version_lock, webhooks
from tenants.actors import Actor, of_task
from tenants.errors import Conflict, NotFound
from tenants.models import Activation, AdapterVersion, Tenant

logger = logging.getLogger(__name__)

State = AdapterVersion.State

MAX_TRIES = 5
"""Trials that a worker began with the base model and did not end with the adapter; after them it is rejected."""

LEAST_CHANGE = 1e-5
"""An adapter has to move some log-probability by more than this, and by more than two runs of the base differ."""

MEAN_TOLERANCE = 0.02
MOST_TOLERANCE = 0.25
"""Nats between the worker's log-probabilities and PEFT's, on average and at most. Where the references hold the base
model too, twice the worker's own distance there is added: 8-bit weights are no fault of the adapter."""

TRY_AGAIN_AFTER = timedelta(seconds=30)
"""From when a trial was queued, or ended without an outcome, until it is queued again."""

_AT_ONCE = 100
_GATE = of_task("activation")


@dataclass(frozen=True, slots=True)
class Trial:
    """What a worker computed for each prompt.

    :param again: the first ones with the base model a second time, for how much it varies.

    :param answers: how the first prompt goes on, without the adapter and with it.
    """

    worker: str
    base: list[Scores]
    again: list[Scores]
    adapter: list[Scores]
    answers: tuple[str, str]


def judge(trial: Trial, golden: Golden | None, fingerprint: str) -> dict[str, Any]:
    """The report: ``passed``, a ``message`` and the figures behind it (nats).

    :param golden: the references that the prompts were taken from; ``None``: there are none.
    :param fingerprint: the base model's; references for another one are not compared.
    """
    report: dict[str, Any] = {
        "passed": False,
        "worker": trial.worker,
        "prompts": len(trial.adapter),
        "answers": dict(zip(("base", "adapter"), trial.answers, strict=True)),
    }
    if not all(scores.finite for scores in trial.adapter):
        return report | {"message": "With the adapter the model computes numbers that are not finite."}
    if any(scores.flat for scores in trial.adapter):
        return report | {"message": "With the adapter every next token is equally likely: its numbers overflow."}
    noise, change = distance(trial.base[: len(trial.again)], trial.again), distance(trial.base, trial.adapter)
    report["change"] = _figures(change)
    if change.most <= max(LEAST_CHANGE, 2 * noise.most):
        return report | {"message": "The adapter changes nothing: the model answers as without it."}
    if golden is None:
        return report | {"passed": True, "message": "The adapter changes the model; no references were sent."}
    if golden.base_fingerprint not in (None, fingerprint):
        note = f"the references are for another base model ({golden.base_fingerprint[:12]}) and were not compared."
        return report | {"passed": True, "message": f"The adapter changes the model; {note}"}
    return report | _compared(trial, golden)


def _compared(trial: Trial, golden: Golden) -> dict[str, Any]:
    far = distance([prompt.adapter for prompt in golden.prompts], trial.adapter)
    own = Distance(0.0, 0.0)
    known = [(prompt.base, scores) for prompt, scores in zip(golden.prompts, trial.base, strict=True) if prompt.base]
    if known:
        own = distance([base for base, _ in known], [scores for _, scores in known])
    mean, most = MEAN_TOLERANCE + 2 * own.mean, MOST_TOLERANCE + 2 * own.most
    found = {"reference": _figures(far) | {"mean_tolerance": round(mean, 6), "most_tolerance": round(most, 6)}}
    if far.mean > mean or far.most > most:
        message = (
            f"The log-probabilities are {far.mean:.3f} from the references on average and {far.most:.3f} at most; "
            f"{mean:.3f} and {most:.3f} are accepted. Were they computed with this adapter and base model?"
        )
        return found | {"message": message}
    return found | {"passed": True, "message": "The adapter changes the model as the references say."}


def _figures(found: Distance) -> dict[str, float]:
    return {"mean": round(found.mean, 6), "most": round(found.most, 6)}


def begin(version: AdapterVersion) -> None:
    """A version whose files are right, in the transaction that found so: it waits for its trial, or is ready at once
    where the operator has switched trials off.
    """
    version.state = State.CHECKED
    version.save()
    activation = Activation.objects.create(tenant=version.adapter.tenant, version=version)
    if settings.ACTIVATION_GATE:
        transaction.on_commit(lambda: enqueue(version.pk))
    else:
        _end(version, activation, Activation.State.WAIVED, {"message": "Trials are switched off."}, _GATE)


def due() -> list[int]:
    """Versions whose trial may be queued, those never tried first."""
    waiting = Activation.objects.unscoped().filter(_free(), state=Activation.State.WAITING, version__state="checked")
    return list(waiting.order_by(F("tried_at").asc(nulls_first=True)).values_list("version_id", flat=True)[:_AT_ONCE])


def enqueue(version_id: int) -> bool:
    """Queue the trial, if no message for it can be under way: a message is worth nothing after :data:`TRY_AGAIN_AFTER`.

    Without a broker, and where the message is lost, the periodic task finds it later.
    """
    waiting = Activation.objects.unscoped().filter(_free(), version_id=version_id, state=Activation.State.WAITING)
    if not waiting.update(tried_at=timezone.now()):
        return False
    try:
        current_app.send_task("fleet.tasks.try_adapter", args=[version_id], expires=TRY_AGAIN_AFTER.total_seconds())
    except (OperationalError, OSError) as error:
        logger.warning("the trial of version %d waits for the broker: %s", version_id, type(error).__name__)
        return False
    return True


def _free() -> Q:
    return Q(tried_at=None) | Q(tried_at__lt=timezone.now() - TRY_AGAIN_AFTER)


def waits(version_id: int, message: str, *, worker_failed: bool = False) -> None:
    """Nothing could be found out; it is tried again.

    :param worker_failed: with the adapter, after it had computed without it. After :data:`MAX_TRIES` of them the
        version is rejected.
    """
    with transaction.atomic():
        version, activation = _undecided(version_id)
        if version is None or activation is None:
            return
        activation.tries += worker_failed
        if activation.tries >= MAX_TRIES:
            _end(version, activation, Activation.State.FAILED, {"passed": False, "message": message}, _GATE)
            return
        activation.report, activation.tried_at = {"passed": None, "message": message}, timezone.now()
        activation.save()


def decide(version_id: int, report: dict[str, Any]) -> None:
    """The trial has ended: ready or rejected. Without effect once somebody has decided."""
    with transaction.atomic():
        version, activation = _undecided(version_id)
        if version is not None and activation is not None:
            state = Activation.State.PASSED if report["passed"] else Activation.State.FAILED
            _end(version, activation, state, report, _GATE)


def waive(actor: Actor, tenant: Tenant, name: str, number: int, reason: str) -> AdapterVersion:
    """An operator lets a version through that waits for its trial, or that failed it.

    Raises :class:`~tenants.errors.NotFound` and :class:`~tenants.errors.Conflict`.
    """
    with transaction.atomic():
        version, activation = _reopened(tenant, name, number)
        _end(version, activation, Activation.State.WAIVED, {**activation.report, "waived": reason}, actor)
        return version


def try_again(actor: Actor, tenant: Tenant, name: str, number: int) -> AdapterVersion:
    """Queue another trial of a version that waits for one, or that failed it. Raises as :func:`waive`."""
    with transaction.atomic():
        version, activation = _reopened(tenant, name, number)
        before = {"state": version.state}
        version.state, version.report = State.CHECKED, {}
        version.save()
        activation.state, activation.tries, activation.tried_at = Activation.State.WAITING, 0, None
        activation.save()
        adapter, after = version.adapter, {"version": number, "state": version.state}
        audit.record(actor, "adapter.trial_asked", str(adapter), tenant=adapter.tenant, before=before, after=after)
        transaction.on_commit(lambda: enqueue(version.pk))
        return version


def is_open(version: AdapterVersion, trial: Activation | None) -> bool:
    """Whether the version waits for its trial, or failed it: what :func:`waive` and :func:`try_again` are for."""
    return trial is not None and version.state in {State.CHECKED, State.REJECTED}


def _end(version: AdapterVersion, activation: Activation, state: str, report: dict[str, Any], actor: Actor) -> None:
    """Write the outcome, and move the name if that is how the adapter is kept."""
    adapter = version.adapter
    before = {"state": version.state}
    activation.state, activation.report, activation.tried_at = state, report, timezone.now()
    activation.save()
    rejected = state == Activation.State.FAILED
    version.state = State.REJECTED if rejected else State.READY
    version.report = _problem(report["message"]) if rejected else {}
    version.save()
    message = report.get("waived") or report.get("message")
    after = {"version": version.number, "state": version.state, "trial": state, "message": message}
    action = "adapter.version_rejected" if rejected else "adapter.version_ready"
    audit.record(actor, action, str(adapter), tenant=adapter.tenant, before=before, after=after)
    about = {"adapter": str(adapter), "version": version.number, "digest": version.digest, "report": report}
    webhooks.emit(adapter.tenant, "adapter.rejected" if rejected else "adapter.ready", about)
    if not rejected:
        releases.accepted(actor, version)


def _problem(message: str) -> dict[str, Any]:
    """In the shape of the file check's own report."""
    advice = "Look at the trial's figures; train or export the adapter again, or send matching references."
    return {"message": message, "field": None, "problems": [{"message": message, "field": None, "advice": advice}]}


def _undecided(version_id: int) -> tuple[AdapterVersion | None, Activation | None]:
    """The version, locked, and its trial, if it still waits."""
    version = version_lock.lock(version_id)
    if version is None or version.state != State.CHECKED:
        return None, None
    return version, _trial(version)


def _reopened(tenant: Tenant, name: str, number: int) -> tuple[AdapterVersion, Activation]:
    adapter = adapters.find(tenant, name)
    version = version_lock.lock(adapters.find_version(tenant, name, number).pk)
    if version is None:
        raise NotFound("version", f"{adapter}@{number}", "number")
    activation = _trial(version)
    if activation is None or not is_open(version, activation):
        raise Conflict(f"{adapter} v{number} is {version.state}; there is no trial to decide.", "number", "no_trial")
    if not store_path(Path(settings.ADAPTER_STORE), version.digest).is_dir():
        raise Conflict(f"The files of {adapter} v{number} are gone; add it again.", "number", "files_gone")
    same = adapter.versions.filter(digest=version.digest).exclude(pk=version.pk).exclude(state=State.REJECTED).first()
    if same is not None:
        raise Conflict(f"{adapter} v{same.number} has the same content.", "number", "same_content")
    return version, activation


def _trial(version: AdapterVersion) -> Activation | None:
    found: Activation | None = Activation.objects.filter(tenant=version.adapter.tenant, version=version).first()
    return found
