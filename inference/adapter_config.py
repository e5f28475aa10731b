"""What a PEFT ``adapter_config.json`` says about a LoRA adapter: which modules, which rank and scaling each.

PEFT writes every option of every LoRA variant into the file. Each known key is accepted at the values that mean LoRA or
DoRA and refused by name at any other; an unknown key is refused, because it may change what the tensors mean.
No regular expression from the file is ever run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from inference.adapter_pattern import MAX_ENTRIES, Pattern, suffixes
from inference.errors import AdapterInvalid
from inference.safetensors_header import shown

V = TypeVar("V")

_LARGEST = 1e6
MAX_NAME_LENGTH = 256


def _brief(value: object) -> str:
    """A refused value for a message; lists and objects, which can be long and deep, only by kind."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return shown(value) if isinstance(value, str) else str(value)[:100]


def _is_none_or_empty(value: object) -> bool:
    return value is None or value in ({}, [])


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_false(value: object) -> bool:
    return value is False or value is None


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST  # type: ignore[arg-type]


def _anything(value: object) -> bool:
    return True


# pissa, olora, corda, loftq and lora_ga also change the base weights, so their A and B mean nothing on the plain base.
_PLAIN_INITS = (True, False, None, "gaussian", "orthogonal", "eva")

# Key → (accepted values, what is accepted). r, lora_alpha, patterns and targets are read below.
_PLAIN_LORA: dict[str, tuple[Callable[[Any], bool], str]] = {
    "alora_invocation_tokens": (_is_none_or_empty, "null"),
    "arrow_config": (_is_none_or_empty, "null"),
    "auto_mapping": (_anything, "anything"),
    "base_model_name_or_path": (_is_text_or_none, "text; it is never fetched"),
    "bias": (lambda value: value == "none", '"none"'),
    "corda_config": (_is_none_or_empty, "null"),
    "ensure_weight_tying": (_is_false, "false"),
    "eva_config": (_anything, "anything"),
    "fan_in_fan_out": (_is_false, "false"),
    "inference_mode": (lambda value: isinstance(value, bool), "true or false"),
    "init_lora_weights": (lambda value: any(value is x or value == x for x in _PLAIN_INITS), "a plain initialisation"),
    "kasa_config": (_is_none_or_empty, "null"),
    "layer_replication": (_is_none_or_empty, "null"),
    "loftq_config": (_is_none_or_empty, "{}"),
    "lora_bias": (_is_false, "false"),
    "lora_dropout": (_is_number, "a number; it has no effect when serving"),
    "lora_ga_config": (_is_none_or_empty, "null"),
    "megatron_config": (_is_none_or_empty, "null"),
    "megatron_core": (_is_text_or_none, "text"),
    "modules_to_save": (_is_none_or_empty, "null"),
    "monteclora_config": (_is_none_or_empty, "null"),
    "peft_type": (lambda value: value == "LORA", '"LORA"'),
    "peft_version": (_is_text_or_none, "text"),
    "qalora_group_size": (_anything, "anything"),
    "revision": (_is_text_or_none, "text"),
    "runtime_config": (_anything, "anything"),
    "target_parameters": (_is_none_or_empty, "null"),
    "task_type": (lambda value: value in (None, "CAUSAL_LM"), '"CAUSAL_LM"'),
    "trainable_token_indices": (_is_none_or_empty, "null"),
    "use_bdlora": (_is_none_or_empty, "null"),
    "use_qalora": (_is_false, "false"),
    "velora_config": (_is_none_or_empty, "null"),
}
READ_HERE = {
    "alpha_pattern",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "r",
    "rank_pattern",
    "target_modules",
    "use_dora",
    "use_rslora",
}
"""Keys that decide what the tensors mean."""

_LAYER = re.compile(r"\.layers\.(\d+)\.", re.ASCII)
_PATTERN_KEY = re.compile(r"(?:[A-Za-z0-9_.-]|\\\.)+", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The part of the file that decides what the tensors mean.

    :param target_modules: names or suffixes of modules; ``"all-linear"``; or ``None`` for a regular expression, which
        is not run: the tensors then say which modules are meant.
    :param exclude_modules: names or suffixes of modules that are left out.
    """

    rank: int
    alpha: float
    rank_pattern: Pattern[int]
    alpha_pattern: Pattern[float]
    use_rslora: bool
    use_dora: bool
    target_modules: tuple[str, ...] | str | None
    exclude_modules: tuple[str, ...] | None
    layers: frozenset[int] | None

    def rank_of(self, module: str) -> int:
        return self.rank_pattern.first(module, self.rank)

    def scaling_of(self, module: str) -> float:
        """α / r, or α / √r with rank-stabilised LoRA; r and α are the module's own."""
        rank = self.rank_of(module)
        alpha = self.alpha_pattern.first(module, self.alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targeted(self, modules: Iterable[str], linears: set[str]) -> set[str] | None:
        """Which of these modules the file targets, as PEFT would have it; ``None``: only the tensors can tell.

        :param linears: those of ``modules`` that ``all-linear`` means.
        """
        if self.target_modules is None or self.exclude_modules is None:
            return None
        kept = [module for module in modules if not self.excludes(module)]
        if isinstance(self.target_modules, str):
            return linears.intersection(kept)
        names = set(self.target_modules)
        return {module for module in kept if module in names or self._is_suffix_target(module, names)}

    def excludes(self, module: str) -> bool:
        names = self.exclude_modules or ()
        return module in names or not set(names).isdisjoint(suffixes(module))

    def _is_suffix_target(self, module: str, names: set[str]) -> bool:
        if names.isdisjoint(suffixes(module)):
            return False
        if self.layers is None:
            return True
        layer = _LAYER.search(module)
        return layer is not None and int(layer[1]) in self.layers


def parse_config(config: dict[str, Any]) -> LoraConfig:
    """Raises :class:`~inference.errors.AdapterInvalid` naming the key that is missing, unknown or not supported."""
    for key, value in config.items():
        if key in READ_HERE:
            continue
        if key not in _PLAIN_LORA:
            raise AdapterInvalid(f"adapter_config.json: unknown key {shown(key)}", key)
        accepts, accepted = _PLAIN_LORA[key]
        if not accepts(value):
            raise AdapterInvalid(
                f"adapter_config.json: {key} = {_brief(value)} is not supported; accepted: {accepted}", key
            )
    for key in ("peft_type", "r", "lora_alpha", "target_modules"):
        if key not in config:
            raise AdapterInvalid(f"adapter_config.json: {key} is missing", key)
    return LoraConfig(
        rank=_rank(config["r"], "r"),
        alpha=_alpha(config["lora_alpha"], "lora_alpha"),
        rank_pattern=_pattern(config.get("rank_pattern"), "rank_pattern", _rank),
        alpha_pattern=_pattern(config.get("alpha_pattern"), "alpha_pattern", _alpha),
        use_rslora=_flag(config, "use_rslora"),
        use_dora=_flag(config, "use_dora"),
        target_modules=_targets(config["target_modules"]),
        exclude_modules=_excluded(config.get("exclude_modules")),
        layers=_layers(config),
    )


def _flag(config: dict[str, Any], key: str) -> bool:
    value = config.get(key)
    if not (value is None or isinstance(value, bool)):
        raise AdapterInvalid(f"adapter_config.json: {key} has to be true or false", key)
    return bool(value)


def _rank(value: object, field: str) -> int:
    if type(value) is not int or not 1 <= value <= 65536:
        raise AdapterInvalid(f"adapter_config.json: {field} has to be a whole number from 1", field)
    return value


def _alpha(value: object, field: str) -> float:
    if not _is_number(value):
        raise AdapterInvalid(f"adapter_config.json: {field} has to be a number of at most a million", field)
    return float(value)  # type: ignore[arg-type]


def _pattern(value: object, field: str, read: Callable[[object, str], V]) -> Pattern[V]:
    if value is None:
        return Pattern({})
    if not isinstance(value, dict):
        raise AdapterInvalid(f"adapter_config.json: {field} has to map module names to numbers", field)
    _check_size(value, field)
    for key in value:
        if not _PATTERN_KEY.fullmatch(key):
            raise AdapterInvalid(
                f"adapter_config.json: {field} key {shown(key)} is not a plain module name; "
                "regular expressions are not run",
                field,
            )
    return Pattern({key: read(item, f"{field}.{key[:100]}") for key, item in value.items()})


def _check_size(entries: Collection[object], field: str) -> None:
    if len(entries) > MAX_ENTRIES:
        raise AdapterInvalid(
            f"adapter_config.json: {field} has {len(entries)} entries; at most {MAX_ENTRIES} are accepted", field
        )
    for entry in entries:
        if isinstance(entry, str) and len(entry) > MAX_NAME_LENGTH:
            raise AdapterInvalid(
                f"adapter_config.json: {field} names {shown(entry)}; at most {MAX_NAME_LENGTH} characters are accepted",
                field,
            )


def _targets(value: object) -> tuple[str, ...] | str | None:
    if isinstance(value, str):
        return "all-linear" if value.lower() == "all-linear" else None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        raise AdapterInvalid(
            "adapter_config.json: target_modules has to be text or a list of module names", "target_modules"
        )
    _check_size(value, "target_modules")
    return tuple(value)


def _excluded(value: object) -> tuple[str, ...] | None:
    """``None`` for a regular expression, which is not run."""
    if value is None or value in ("", []):
        return ()
    if isinstance(value, str):
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise AdapterInvalid(
            "adapter_config.json: exclude_modules has to be text or a list of module names", "exclude_modules"
        )
    _check_size(value, "exclude_modules")
    return tuple(value)


def _layers(config: dict[str, Any]) -> frozenset[int] | None:
    pattern = config.get("layers_pattern")
    if pattern not in (None, "", [], "layers", ["layers"]):
        raise AdapterInvalid(
            f"adapter_config.json: layers_pattern = {_brief(pattern)} is not supported; accepted: layers",
            "layers_pattern",
        )
    layers = config.get("layers_to_transform")
    if layers is None or layers == []:
        return None
    if type(layers) is int:
        layers = [layers]
    if not isinstance(layers, list) or not all(type(layer) is int and layer >= 0 for layer in layers):
        raise AdapterInvalid(
            "adapter_config.json: layers_to_transform has to be a layer number or a list of them", "layers_to_transform"
        )
    _check_size(layers, "layers_to_transform")
    return frozenset(layers)
