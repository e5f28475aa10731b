"""Base models: registered from the model store, retired, activated again. Operators only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from inference.base_shapes import BaseShapes
from inference.model_store import fingerprint_of
from tenants import audit
from tenants.actors import Actor
from tenants.errors import Invalid, NotConfigured, NotFound
from tenants.models import Adapter, BaseModel

_SHOWN = ("fingerprint", "directory", "context_length", "state")


def find(name: str, param: str | None = None) -> BaseModel:
    """Raises :class:`~tenants.errors.NotFound`, :class:`~tenants.errors.Invalid` where ``param`` is what names it."""
    model = BaseModel.objects.filter(name=name).first() if "\0" not in name else None
    if model is None:
        if param is not None:
            raise Invalid(f"There is no base model {name[:100]!r}.", param)
        raise NotFound("base model", name)
    return model


def register(
    actor: Actor, directory: Path, *, name: str, context_length: int | None = None, replace: bool = False
) -> tuple[BaseModel, bool]:
    """Register a base model from its model store directory, or bring its row up to date; whether it is new.

    :param context_length: fewer tokens than the model's own context, or as many; ``None``: as before, and for a new
        one its own. :param replace: even where adapters were made for other weights under this name.

    Raises :class:`~tenants.errors.NotConfigured` and, of the directory's content, ``InferenceError``.
    """
    resolved = directory.resolve()
    if not (resolved / "fingerprint").is_file():
        raise NotConfigured(_unconverted(directory, name))
    fingerprint = fingerprint_of(resolved)
    config = json.loads((resolved / "config.json").read_text(encoding="utf-8"))
    BaseShapes.from_config(config)
    with transaction.atomic():
        model = BaseModel.objects.select_for_update(no_key=True).filter(name=name).first() or BaseModel(name=name)
        created = model.pk is None
        before = {} if created else audit.snapshot(model, _SHOWN)
        if not created and model.fingerprint != fingerprint and not replace:
            adapters = Adapter.objects.unscoped().filter(base_model=model).count()
            if adapters:
                raise NotConfigured(
                    f"{name} has other weights now; {adapters} adapters were made for the old ones (--replace)."
                )
        own = _own_context(config)
        former = model.config.get("max_position_embeddings", 0)  # rows that were not made here may not say
        if context_length is None and not created and model.context_length < former:
            context_length = min(model.context_length, own)  # somebody said so; each start of `up` comes by here
        model.fingerprint, model.directory, model.config = fingerprint, str(resolved), config
        model.context_length = _context_length(own, context_length)
        model.full_clean()
        model.save()
        after = audit.snapshot(model, _SHOWN)
        if before != after:
            action = "model.registered" if created else "model.changed"
            audit.record(actor, action, name, tenant=None, before=before, after=after)
    return model, created


def set_state(actor: Actor, model: BaseModel, state: str) -> None:
    """``retired``: nobody can use it, nor adapters on it, from the next request on. ``active``: they can again."""
    with transaction.atomic():
        model.refresh_from_db(from_queryset=BaseModel.objects.select_for_update(no_key=True))
        if model.state != state:
            before, model.state = {"state": model.state}, state
            model.save(update_fields=["state"])
            verb = "retired" if state == BaseModel.State.RETIRED else "activated"
            audit.record(actor, f"model.{verb}", model.name, tenant=None, before=before, after={"state": state})


def _unconverted(directory: Path, name: str) -> str:
    """What to do with a directory that is none of the model store's."""
    if not directory.exists():
        return f"--directory {directory} does not exist."
    out = settings.MODEL_STORE / name
    return (
        f"--directory {directory} is not a registered model: it holds no fingerprint. "
        f"Convert it with `python -m inference.model_store {directory} {out}` and give {out}."
    )


def _own_context(config: dict[str, Any]) -> int:
    own = config.get("max_position_embeddings")
    if type(own) is not int or own < 2:
        raise NotConfigured("config.json: max_position_embeddings has to be a whole number from 2")
    return own


def _context_length(own: int, wanted: int | None) -> int:
    if wanted is not None and not 2 <= wanted <= own:
        raise NotConfigured(f"--context-length has to be between 2 and the model's own {own}")
    return wanted or own
