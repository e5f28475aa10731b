"""Which version an adapter's name stands for: promotion, a canary's share, rollback. What was stays on record.

A release takes effect in every gateway once its keys are read again: within ``gateway.auth.TTL_SECONDS``.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction

from tenants import adapters, audit
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Adapter, AdapterVersion, Release, Tenant

Kind = Release.Kind


def promote(actor: Actor, tenant: Tenant, name: str, number: int | None = None) -> Release:
    """From now on the name stands for this version alone.

    :param number: ``None``: the canary, which so becomes everybody's.

    Raises :class:`~tenants.errors.NotFound`, or :class:`~tenants.errors.Conflict` for a version that is not ready, and
    without a number where no canary runs.
    """
    with transaction.atomic():
        adapter = _locked(tenant, name)
        if number is None and adapter.canary is None:
            raise Conflict(f"{adapter} has no canary to promote; say which version.", "version", "no_canary")
        version = adapter.canary if number is None else _ready(adapter, number)
        assert version is not None
        if adapter.current_id == version.pk and adapter.canary is None:
            return latest(adapter)
        return _release(actor, adapter, Kind.PROMOTE, version)


def set_canary(actor: Actor, tenant: Tenant, name: str, number: int, percent: int) -> Release:
    """Give a share of the name's requests to another version than the current one.

    :param percent: 0 to 100; 0 ends the canary.

    Raises as :func:`promote`, and :class:`~tenants.errors.Invalid` for a percentage that is none.
    """
    if not 0 <= percent <= 100:
        raise Invalid("percent has to be between 0 and 100.", "percent")
    with transaction.atomic():
        adapter = _locked(tenant, name)
        version = _ready(adapter, number)
        if adapter.current is None:
            raise Conflict(f"{adapter} serves no version yet; promote one first.", "version", "no_current")
        if adapter.current_id == version.pk:
            raise Conflict(f"{adapter} v{number} is the current version already.", "version", "already_current")
        if percent == 0 and adapter.canary_id != version.pk:
            raise Conflict(f"{adapter} v{number} is no canary.", "version", "no_canary")
        return _release(
            actor, adapter, Kind.CANARY, adapter.current, canary=version if percent else None, percent=percent
        )


def rollback(actor: Actor, tenant: Tenant, name: str, *, expected: int | None = None) -> Release:
    """Back to the release before: from a canary to the version that ran before it, else to the version promoted before.

    Once more goes further back. Releases whose version was deleted are passed over. Raises
    :class:`~tenants.errors.NotFound`, and :class:`~tenants.errors.Conflict` where there is nothing before.

    :param expected: the number of the release to go back from, as somebody saw it: a Conflict where it is not the
        latest any more, so that two who decide the same do not go back twice. ``None``: from the latest, whichever.
    """
    with transaction.atomic():
        adapter = _locked(tenant, name)
        if expected is not None:
            require_latest(adapter, expected)
        target = before(adapter)
        if target is None:
            raise Conflict(f"{adapter} has no release to go back to.", code="no_previous_release")
        return _release(actor, adapter, Kind.ROLLBACK, target.version, previous=target.previous)


def require_latest(adapter: Adapter, number: int) -> None:
    """Raises :class:`~tenants.errors.Conflict` where another release came after the one with this number."""
    if latest_number(adapter) != number:
        message = (
            f"What {adapter} stands for was changed after this was asked: by somebody else, or as it was sent twice."
        )
        raise Conflict(message, code="release_outdated")


def before(adapter: Adapter) -> Release | None:
    """What :func:`rollback` would go back to; ``None`` where there is nothing before."""
    target = latest(adapter).previous if adapter.current is not None else None
    while target is not None and target.version.deleted_at is not None:
        target = target.previous
    return target


def set_automatic(actor: Actor, tenant: Tenant, name: str, automatic: bool) -> Adapter:
    """Whether a new version is promoted by itself once it is ready (never while a canary runs)."""
    with transaction.atomic():
        adapter = _locked(tenant, name)
        if adapter.auto_promote != automatic:
            before, adapter.auto_promote = {"auto_promote": adapter.auto_promote}, automatic
            adapter.save(update_fields=["auto_promote"])
            audit.record(
                actor,
                "adapter.automatic_promotion_set",
                str(adapter),
                tenant=adapter.tenant,
                before=before,
                after={"auto_promote": automatic},
            )
        return adapter


def set_pinned(actor: Actor, tenant: Tenant, name: str, pinned: bool) -> Adapter:
    """Whether every worker of the base model keeps the adapter loaded, as far as its slots go."""
    with transaction.atomic():
        adapter = _locked(tenant, name)
        if adapter.pinned != pinned:
            before, adapter.pinned = {"pinned": adapter.pinned}, pinned
            adapter.save(update_fields=["pinned"])
            action = "adapter.pinned" if pinned else "adapter.unpinned"
            audit.record(actor, action, str(adapter), tenant=adapter.tenant, before=before, after={"pinned": pinned})
        return adapter


def accepted(actor: Actor, version: AdapterVersion) -> Release | None:
    """A version has become ready, or was sent in again: promote it, if the adapter does so by itself.

    In the transaction that makes it ready. A version that comes late does not move the name back.
    """
    adapter = _locked_by_id(version)
    if not adapter.auto_promote or adapter.canary is not None:
        return None
    if adapter.current is not None and adapter.current.number >= version.number:
        return None
    return _release(actor, adapter, Kind.AUTOMATIC, version)


def sent_again(actor: Actor, version: AdapterVersion) -> Release | None:
    """A ready version's content was added once more: the name goes back to it, if the adapter promotes by itself."""
    adapter = _locked_by_id(version)
    if not adapter.auto_promote or adapter.canary is not None or adapter.current_id == version.pk:
        return None
    return _release(actor, adapter, Kind.PROMOTE, version)


def history(adapter: Adapter) -> Any:
    """All releases of an adapter, for lists."""
    rows = Release.objects.filter(tenant=adapter.tenant, adapter=adapter)
    return rows.select_related("adapter__tenant", "version", "canary")


def latest(adapter: Adapter) -> Release:
    """What the name stands for now. An adapter from before there were releases gets its first one."""
    rows = Release.objects.filter(tenant=adapter.tenant, adapter=adapter)
    found: Release | None = rows.select_related("version", "canary", "previous").order_by("-number").first()
    if found is not None:
        return found
    if adapter.current is None:
        raise NotFound("release", str(adapter))
    first: Release = Release.objects.create(
        tenant=adapter.tenant,
        adapter=adapter,
        number=1,
        kind=Kind.AUTOMATIC,
        version=adapter.current,
        made_by="system upgrade",
    )
    return first


def latest_number(adapter: Adapter) -> int:
    """Of :func:`latest`; 0 where there was no release."""
    return latest(adapter).number if adapter.current is not None else 0


def _release(
    actor: Actor,
    adapter: Adapter,
    kind: str,
    version: AdapterVersion,
    *,
    canary: AdapterVersion | None = None,
    percent: int = 0,
    previous: Release | None = None,
) -> Release:
    """Write the release, and what gateways read of it into the adapter's row, which is locked."""
    last = latest(adapter) if adapter.current is not None else None
    if kind != Kind.ROLLBACK and last is not None:
        previous = last if last.canary_id is None else last.previous
        if canary is None and previous is not None and previous.version_id == version.pk:
            previous = previous.previous  # a canary that ended: what was before it is before this one too
    before = _shown(adapter)
    made: Release = Release.objects.create(
        tenant=adapter.tenant,
        adapter=adapter,
        number=last.number + 1 if last is not None else 1,
        kind=kind,
        version=version,
        canary=canary,
        canary_percent=percent if canary is not None else 0,
        previous=previous,
        made_by=str(actor),
    )
    adapter.current, adapter.canary, adapter.canary_percent = version, canary, made.canary_percent
    adapter.save(update_fields=["current", "canary", "canary_percent"])
    action = {Kind.CANARY: "adapter.canary_set", Kind.ROLLBACK: "adapter.rolled_back"}.get(kind, "adapter.promoted")  # type: ignore[call-overload]
    audit.record(actor, action, str(adapter), tenant=adapter.tenant, before=before, after=_shown(adapter))
    return made


def _shown(adapter: Adapter) -> dict[str, Any]:
    return {
        "version": adapter.current.number if adapter.current else None,
        "canary": adapter.canary.number if adapter.canary else None,
        "canary_percent": adapter.canary_percent,
    }


def _locked(tenant: Tenant, name: str) -> Adapter:
    return _lock(tenant, adapters.find(tenant, name))


def _locked_by_id(version: AdapterVersion) -> Adapter:
    return _lock(version.adapter.tenant, version.adapter)


def _lock(tenant: Tenant, adapter: Adapter) -> Adapter:
    """The adapter as it is once nobody else changes it. Read after the lock is held: a statement that waits for a row
    joins it with what was there before.
    """
    if Adapter.objects.select_for_update().filter(tenant=tenant, pk=adapter.pk).first() is None:
        raise NotFound("adapter", adapter.name, "name")
    return adapters.find(tenant, adapter.name)


def _ready(adapter: Adapter, number: int) -> AdapterVersion:
    version: AdapterVersion | None = adapter.versions.filter(number=number).first()
    if version is None:
        raise NotFound("version", f"{adapter}@{number}", "version")
    if version.state != AdapterVersion.State.READY:
        raise Conflict(
            f"{adapter} v{number} is {version.state}; only a ready version can answer.", "version", "not_ready"
        )
    return version
