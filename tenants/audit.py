"""The one way into the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models

from tenants.actors import Actor
from tenants.keys import Secret
from tenants.models import AuditEntry, Tenant

_MOST_TEXT = 2000


def record(
    actor: Actor,
    action: str,
    subject: str,
    *,
    tenant: Tenant | None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Write down a change, in the transaction that makes it. Of ``before`` and ``after`` only what differs is kept.

    :param action: ``<noun>.<verb in the past tense>``, such as ``key.issued``.
    :param subject: the object's name as its own API says it: a key's public id, ``acme/pirate``, a tenant's slug.
    :param tenant: whose object it is, whoever acts; ``None`` for the platform's own (plans, prices, workers).
    """
    old, new = _plain(before or {}), _plain(after or {})
    if old and new:
        same = {name for name in old.keys() & new.keys() if old[name] == new[name]}
        old, new = ({name: value for name, value in side.items() if name not in same} for side in (old, new))
    entry: AuditEntry = AuditEntry.objects.create(
        tenant=tenant,
        actor_kind=actor.kind,
        actor_name=actor.name[:200],
        address=actor.address,
        action=action,
        subject=subject[:200],
        before=old,
        after=new,
    )
    return entry


def snapshot(instance: models.Model, fields: Iterable[str]) -> dict[str, Any]:
    """Some of a row's columns, for ``before`` and ``after``. A foreign key is shown as its object calls itself."""
    found = {}
    for name in fields:
        value = getattr(instance, name)
        found[name] = str(value) if isinstance(value, models.Model) else value
    return found


def _plain(side: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON will give it back, so that both sides compare alike."""
    return {name: _value(name, value) for name, value in side.items()}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, Secret | bytes | memoryview):
        raise TypeError(f"{name}: no secret belongs in the audit log")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value[:_MOST_TEXT]
    if isinstance(value, Mapping):
        return {str(key): _value(name, item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(name, item) for item in value]
    return DjangoJSONEncoder().default(value)
