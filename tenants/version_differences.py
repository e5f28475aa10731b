"""What changed from one version of an adapter to another: its figures, its PEFT config, its modules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from inference.adapter_format import CONFIG_FILE, store_path
from inference.errors import AdapterInvalid, AdapterNotFound
from inference.safetensors_header import load_json
from tenants.models import AdapterVersion

_MODULE_FIELDS = ("rank", "scaling", "dora")


@dataclass(frozen=True, slots=True)
class Change:
    """:param before: and :param after: ``None`` where it was not there."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """A module that only one of the two adapts, or both differently. :param before: and :param after: its ``rank``,
    ``scaling`` and ``dora``; ``None`` where it is not adapted.
    """

    module: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Differences:
    """:param config: ``None`` where the config of one of them cannot be read: it never passed its check, or its
    content was collected. :param same_modules: how many modules both adapt alike.
    """

    figures: list[Change]
    config: list[Change] | None
    modules: list[ModuleChange]
    same_modules: int


def compare(older: AdapterVersion, newer: AdapterVersion) -> Differences:
    before, after = _modules(older), _modules(newer)
    names = sorted(before.keys() | after.keys())
    changed = [ModuleChange(name, before.get(name), after.get(name)) for name in names]
    changed = [change for change in changed if change.before != change.after]
    configs = config_of(older), config_of(newer)
    config = None if configs[0] is None or configs[1] is None else _changes(configs[0], configs[1])
    return Differences(_changes(_figures(older), _figures(newer)), config, changed, len(names) - len(changed))


def config_of(version: AdapterVersion) -> dict[str, Any] | None:
    """Its ``adapter_config.json``, from the content store; ``None`` where the store does not hold it."""
    try:
        path = store_path(Path(settings.ADAPTER_STORE), version.digest) / CONFIG_FILE
        return load_json(path.read_bytes(), CONFIG_FILE)
    except (OSError, AdapterInvalid, AdapterNotFound):
        return None


def _figures(version: AdapterVersion) -> dict[str, Any]:
    return {
        "digest": version.digest or None,
        "bytes": version.stored_bytes,
        "data type": version.spec.get("dtype"),
        "largest rank": version.spec.get("max_rank"),
        "modules": len(version.spec.get("targets", ())),
    }


def _modules(version: AdapterVersion) -> dict[str, dict[str, Any]]:
    targets = version.spec.get("targets", ())
    return {target["module"]: {name: target[name] for name in _MODULE_FIELDS} for target in targets}


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    names = sorted(before.keys() | after.keys())
    return [Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
