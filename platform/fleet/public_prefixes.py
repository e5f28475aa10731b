"""Public prefixes: texts that operators declare to be no secret: workers compute them once for all tenants.

Declared here, they are put on every worker by :mod:`fleet.prefix_placement`, after its restart too. Operators only.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from fleet.models import PublicPrefix
from inference.config import BLOCK_SIZE
from inference.errors import ConfigError, InferenceError, InvalidRequest
from inference.prefix_id import prefix_id
from inference.prompt import PromptRenderer
from tenants import audit
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Adapter, AdapterVersion, BaseModel

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 200_000
MOST_MESSAGES = 100
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prefix as a worker is told of it. :param digest: of the adapter that it is for."""

    name: str
    digest: str | None
    tokens: Sequence[int]


def find(name: str) -> PublicPrefix:
    """Raises :class:`~tenants.errors.NotFound`."""
    rows = PublicPrefix.objects.select_related("base_model", "adapter__tenant")
    prefix = rows.filter(name=name).first() if "\0" not in name else None
    if prefix is None:
        raise NotFound("public prefix", name)
    return prefix


def declare(
    actor: Actor,
    name: str,
    base_model: BaseModel,
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, str]] | None = None,
    adapter: Adapter | None = None,
) -> PublicPrefix:
    """Have the workers share it, within seconds; the full blocks of its tokens count.

    :param messages: that chats begin with, ``{"role", "content"}`` each. :param prompt: or what completions begin with.
    :param adapter: for it instead of the base model alone; its current version and its canary.

    Raises :class:`~tenants.errors.Invalid`, and :class:`~tenants.errors.Conflict` where the name is taken.
    """
    source = _source(prompt, messages)
    if adapter is not None and adapter.base_model_id != base_model.pk:
        raise Invalid(f"{adapter} is an adapter of {adapter.base_model}, not of {base_model}.", "adapter")
    prefix = PublicPrefix(name=name, base_model=base_model, adapter=adapter, source=source)
    prefix.tokens, prefix.fingerprint = _tokens(base_model, source), base_model.fingerprint
    _check(prefix)
    with transaction.atomic():
        try:
            with transaction.atomic():
                prefix.save(force_insert=True)
        except IntegrityError:
            raise Conflict(f"There is a public prefix {name!r} already.", "name", "name_taken") from None
        audit.record(actor, "public_prefix.declared", name, tenant=None, after=_shown(prefix))
    return prefix


def withdraw(actor: Actor, prefix: PublicPrefix) -> None:
    """From a few seconds on every tenant computes it for itself again. Without effect where it is gone."""
    with transaction.atomic():
        deleted, _ = PublicPrefix.objects.filter(pk=prefix.pk).delete()
        if deleted:
            audit.record(actor, "public_prefix.withdrawn", prefix.name, tenant=None, before=_shown(prefix))


def shared_tokens(prefix: PublicPrefix) -> int:
    """Those in full blocks."""
    return len(prefix.tokens) // BLOCK_SIZE * BLOCK_SIZE


def text(prefix: PublicPrefix) -> str:
    """What it says, for people. Who says what, where it is more than one system prompt."""
    if "prompt" in prefix.source:
        return str(prefix.source["prompt"])
    if [message["role"] for message in prefix.source["messages"]] == ["system"]:
        return str(prefix.source["messages"][0]["content"])
    return "\n".join(f"{message['role']}: {message['content']}" for message in prefix.source["messages"])


def wanted() -> dict[int, dict[str, Wanted]]:
    """What should be declared at the workers: by the base model's id, then by the prefix's own id."""
    found: dict[int, dict[str, Wanted]] = defaultdict(dict)
    for prefix in PublicPrefix.objects.select_related("base_model", "adapter__current", "adapter__canary"):
        tokens = _up_to_date(prefix)
        if tokens is None:
            continue
        for digest in _digests(prefix.adapter):
            found[prefix.base_model_id][prefix_id(digest, tokens)] = Wanted(prefix.name, digest, tokens)
    return found


def _digests(adapter: Adapter | None) -> list[str | None]:
    if adapter is None:
        return [None]
    versions: list[AdapterVersion | None] = [adapter.current, adapter.canary]
    return [version.digest for version in versions if version is not None and version.digest]


def _up_to_date(prefix: PublicPrefix) -> list[int] | None:
    """Its tokens under the weights that its base model has now; ``None`` where it has none under them."""
    if prefix.fingerprint == prefix.base_model.fingerprint:
        return list(prefix.tokens)
    try:
        tokens = _tokens(prefix.base_model, prefix.source)
    except Invalid as error:
        logger.warning("public prefix %s: %s", prefix, error)
        return None
    PublicPrefix.objects.filter(pk=prefix.pk).update(tokens=tokens, fingerprint=prefix.base_model.fingerprint)
    return tokens


def _source(prompt: str | None, messages: Sequence[Mapping[str, str]] | None) -> dict[str, Any]:
    if (prompt is None) == (messages is None):
        raise Invalid("Exactly one of prompt and messages says what the prefix is.", "prompt")
    if messages is None:
        assert prompt is not None
        _check_text(prompt, "prompt")
        return {"prompt": prompt}
    if not 0 < len(messages) <= MOST_MESSAGES:
        raise Invalid(f"messages has to hold 1 to {MOST_MESSAGES} messages.", "messages")
    for message in messages:
        if set(message) != {"role", "content"} or message["role"] not in ROLES:
            raise Invalid(f"messages: each has a role, one of {', '.join(ROLES)}, and a content.", "messages")
    _check_text("".join(message["content"] for message in messages), "messages")
    return {"messages": [dict(message) for message in messages]}


def _check_text(given: str, param: str) -> None:
    if not given.strip():
        raise Invalid(f"{param} is empty.", param)
    if len(given) > MOST_CHARACTERS:
        raise Invalid(f"{param} has {len(given)} characters; a prefix may have {MOST_CHARACTERS}.", param)
    if "\0" in given:
        raise Invalid(f"{param} holds a NUL character, which cannot be kept.", param)


def _tokens(base_model: BaseModel, source: Mapping[str, Any]) -> list[int]:
    """As the gateway makes them of a request's beginning. Raises :class:`~tenants.errors.Invalid`."""
    param = "prompt" if "prompt" in source else "messages"
    try:
        renderer = PromptRenderer.load(Path(base_model.directory))
        if param == "prompt":
            tokens = renderer.encode(source["prompt"], add_special_tokens=True)
        else:
            # Without the beginning of an answer: a conversation goes on with the next message.
            tokens = renderer.encode_chat(source["messages"], add_generation_prompt=False)
    except InvalidRequest as error:
        raise Invalid(f"{param}: {error}", param) from None
    except (ConfigError, OSError) as error:
        raise Invalid(f"The tokenizer of {base_model} cannot be read: {error}", "model") from None
    except InferenceError as error:
        raise Invalid(f"{param}: {error}", param) from None
    if len(tokens) < BLOCK_SIZE:
        message = f"{param}: {len(tokens)} tokens are too few; blocks of {BLOCK_SIZE} are shared."
        raise Invalid(message, param)
    if len(tokens) > base_model.context_length:
        message = f"{param}: {len(tokens)} tokens are more than a request may have, {base_model.context_length}."
        raise Invalid(message, param)
    return tokens


def _check(prefix: PublicPrefix) -> None:
    try:
        prefix.full_clean(exclude=("tokens", "source", "adapter"), validate_unique=False)
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        raise Invalid(f"{name}: {messages[0]}", name) from None


def _shown(prefix: PublicPrefix) -> dict[str, Any]:
    found = {"model": str(prefix.base_model), "text": text(prefix), "tokens": len(prefix.tokens)}
    return found | ({"adapter": str(prefix.adapter)} if prefix.adapter is not None else {})
