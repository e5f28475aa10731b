"""What a PEFT ``adapter_config.json`` says about a LoRA adapter: which modules, which rank and scaling each.

PEFT writes every option of every LoRA variant into the file. Each known key is accepted at the values that mean plain
LoRA and refused by name at any other; an unknown key is refused, because it may change what the tensors mean.
No regular expression from the file is ever run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from inference.errors import AdapterInvalid
from inference.safetensors_header import shown

V = TypeVar("V")

_LARGEST = 1e6


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
    "exclude_modules": (_is_none_or_empty, "null"),
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
    "use_dora": (_is_false, "false"),
    "use_qalora": (_is_false, "false"),
    "velora_config": (_is_none_or_empty, "null"),
}
_READ_HERE = {
    "alpha_pattern",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "r",
    "rank_pattern",
    "target_modules",
    "use_rslora",
}

_LAYER = re.compile(r"\.layers\.(\d+)\.", re.ASCII)
_PATTERN_KEY = re.compile(r"(?:[A-Za-z0-9_.-]|\\\.)+", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The part of the file that decides what the tensors mean.

    :param target_modules: names or suffixes of modules; ``"all-linear"``; or ``None`` for a regular expression, which
        is not run: the tensors then say which modules are meant.
    """

    rank: int
    alpha: float
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    use_rslora: bool
    target_modules: tuple[str, ...] | str | None
    layers: frozenset[int] | None

    def rank_of(self, module: str) -> int:
        return _first_match(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """α / r, or α / √r with rank-stabilised LoRA; r and α are the module's own."""
        rank = self.rank_of(module)
        alpha = _first_match(self.alpha_pattern, module, self.alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targeted(self, modules: Iterable[str]) -> set[str] | None:
        """Which of these modules the file targets, as PEFT would have it; ``None``: only the tensors can tell."""
        if self.target_modules is None:
            return None
        if isinstance(self.target_modules, str):
            return set(modules)
        names = set(self.target_modules)
        return {module for module in modules if module in names or self._is_suffix_target(module)}

    def _is_suffix_target(self, module: str) -> bool:
        assert isinstance(self.target_modules, tuple)
        if not any(module.endswith(f".{name}") for name in self.target_modules):
            return False
        if self.layers is None:
            return True
        layer = _LAYER.search(module)
        return layer is not None and int(layer[1]) in self.layers


def _first_match(pattern: dict[str, V], module: str, default: V) -> V:
    return next((value for key, value in pattern.items() if _matches(key, module)), default)


def _matches(key: str, module: str) -> bool:
    """PEFT's ``re.match(rf"(.*\\.)?({key})$", module)`` for plain keys, where a dot stands for any character."""
    characters = re.findall(r"\\\.|.", key)
    start = len(module) - len(characters)
    if start < 0 or (start > 0 and module[start - 1] != "."):
        return False
    return all(
        want in (".", have) or (want == "\\." and have == ".")
        for want, have in zip(characters, module[start:], strict=True)
    )


def parse_config(config: dict[str, Any]) -> LoraConfig:
    """Raises :class:`~inference.errors.AdapterInvalid` naming the key that is missing, unknown or not supported."""
    for key, value in config.items():
        if key in _READ_HERE:
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
    use_rslora = config.get("use_rslora")
    if not (use_rslora is None or isinstance(use_rslora, bool)):
        raise AdapterInvalid("adapter_config.json: use_rslora has to be true or false", "use_rslora")
    return LoraConfig(
        rank=_rank(config["r"], "r"),
        alpha=_alpha(config["lora_alpha"], "lora_alpha"),
        rank_pattern=_pattern(config.get("rank_pattern"), "rank_pattern", _rank),
        alpha_pattern=_pattern(config.get("alpha_pattern"), "alpha_pattern", _alpha),
        use_rslora=bool(use_rslora),
        target_modules=_targets(config["target_modules"]),
        layers=_layers(config),
    )


def _rank(value: object, field: str) -> int:
    if type(value) is not int or not 1 <= value <= 65536:
        raise AdapterInvalid(f"adapter_config.json: {field} has to be a whole number from 1", field)
    return value


def _alpha(value: object, field: str) -> float:
    if not _is_number(value):
        raise AdapterInvalid(f"adapter_config.json: {field} has to be a number of at most a million", field)
    return float(value)  # type: ignore[arg-type]


def _pattern(value: object, field: str, read: Callable[[object, str], V]) -> dict[str, V]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise AdapterInvalid(f"adapter_config.json: {field} has to map module names to numbers", field)
    for key in value:
        if not _PATTERN_KEY.fullmatch(key):
            raise AdapterInvalid(
                f"adapter_config.json: {field} key {shown(key)} is not a plain module name; "
                "regular expressions are not run",
                field,
            )
    return {key: read(item, f"{field}.{key[:100]}") for key, item in value.items()}


def _targets(value: object) -> tuple[str, ...] | str | None:
    if isinstance(value, str):
        return "all-linear" if value.lower() == "all-linear" else None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        raise AdapterInvalid(
            "adapter_config.json: target_modules has to be text or a list of module names", "target_modules"
        )
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
    return frozenset(layers)
