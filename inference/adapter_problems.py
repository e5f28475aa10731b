"""Everything that is wrong with an adapter, for a report to people: :func:`check_adapter` stops at the first.

Each part is looked at for itself, with the very functions that the check uses: each key of the configuration, each
module's tensors, each tensor's numbers. What a broken part hides (a header that cannot be read hides its tensors) comes
up at the next try. Runs nothing, allocates little, and is bounded as the check is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from inference.adapter_config import READ_HERE, LoraConfig, parse_config
from inference.adapter_format import (
    CONFIG_FILE,
    TENSORS_FILE,
    check_adapter,
    check_listing,
    check_target,
    check_targets,
    read_config,
)
from inference.adapter_tensors import checked_module, part_of
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid
from inference.safetensors_header import Tensor, load_json, printable, read_header, refuse_non_finite

MOST = 50
"""Problems in one report; whoever has more sees the rest at the next try."""

_PLAIN = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}
_ADVICE = {
    "bias": 'Train with bias="none".',
    "fan_in_fan_out": "Train on a model whose layers are torch.nn.Linear.",
    "init_lora_weights": "Convert it with PEFT's save_pretrained(path_initial_model_for_weight_conversion=…).",
    "modules_to_save": "Train without modules_to_save: base weights are shared and cannot be replaced.",
    "peft_type": "Only LoRA adapters (DoRA and rsLoRA included) can be served.",
    "target_parameters": "Train with target_modules instead.",
    "task_type": 'Save it as task_type="CAUSAL_LM".',
    "trainable_token_indices": "Train without trainable_token_indices.",
    "r": "r and rank_pattern have to be what the tensors have; upload the files of one training run.",
    "target_modules": "Upload the adapter_config.json that was saved together with the tensors.",
    "exclude_modules": "Upload the adapter_config.json that was saved together with the tensors.",
    "use_dora": "use_dora has to be what the adapter was trained with; the embedding takes no DoRA.",
    CONFIG_FILE: "Save the adapter again with PEFT's save_pretrained and upload the file as it is.",
    TENSORS_FILE: "Save the adapter again with PEFT's save_pretrained(safe_serialization=True), in one file.",
}
_UNKNOWN_KEY = "Remove the key if it has no effect, or save the adapter with a PEFT version that knows no such key."
_TENSOR = "Save the adapter of this very base model with PEFT's save_pretrained; nothing else belongs into the file."
_NOT_FINITE = "The training diverged: train again, with a lower learning rate."


def find_problems(directory: Path, base: BaseShapes) -> list[dict[str, str | None]]:
    """What is wrong, the first :data:`MOST`: ``message``, ``field`` (file, key or tensor) and ``advice``; empty if
    nothing is. Raises ``OSError`` only where the machine fails.
    """
    found: list[AdapterInvalid] = []
    for error in _problems(directory, base):
        if str(error) not in {str(known) for known in found}:
            found.append(error)
        if len(found) == MOST:
            break
    if not found:  # what no part shows by itself
        try:
            check_adapter(directory, base)
        except AdapterInvalid as error:
            found.append(error)
    return [
        {
            "message": printable(str(error), 1000),
            "field": error.field and printable(error.field),
            "advice": _advice(error),
        }
        for error in found
    ]


def _advice(error: AdapterInvalid) -> str | None:
    message = str(error)
    if "NaN or an infinity" in message:
        return _NOT_FINITE
    if "unknown key" in message:
        return _UNKNOWN_KEY
    if error.field in _ADVICE:
        return _ADVICE[error.field]
    return _TENSOR if message.startswith("tensor ") else None


def _problems(directory: Path, base: BaseShapes) -> Iterator[AdapterInvalid]:
    try:
        check_listing(directory)
    except AdapterInvalid as error:
        yield error
        return
    config: LoraConfig | None = None
    try:
        values = load_json(read_config(directory / CONFIG_FILE), CONFIG_FILE)
    except AdapterInvalid as error:
        yield error
    else:
        wrong = list(_config_problems(values))
        yield from wrong
        config = _readable(values, {error.field for error in wrong})
    try:
        tensors = read_header(directory / TENSORS_FILE)
    except AdapterInvalid as error:
        yield error
        return
    yield from _tensor_problems(tensors, base, config)
    yield from _number_problems(directory / TENSORS_FILE, tensors)


def _config_problems(values: dict[str, Any]) -> Iterator[AdapterInvalid]:
    """Each key by itself, in a configuration where all else is plain."""
    for key, value in values.items():
        try:
            parse_config({**_PLAIN, key: value})
        except AdapterInvalid as error:
            yield error
    for key in _PLAIN:
        if key not in values:
            yield AdapterInvalid(f"{CONFIG_FILE}: {key} is missing", key)


def _readable(values: dict[str, Any], wrong: set[str | None]) -> LoraConfig | None:
    """The configuration without the keys that are wrong; ``None`` if those decide what the tensors mean."""
    if wrong & READ_HERE:
        return None
    try:
        return parse_config({**{k: v for k, v in values.items() if k not in wrong}, "peft_type": "LORA"})
    except AdapterInvalid:
        return None


def _tensor_problems(
    tensors: Sequence[Tensor], base: BaseShapes, config: LoraConfig | None
) -> Iterator[AdapterInvalid]:
    parts: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        try:
            module, part = part_of(tensor.name, base)
        except AdapterInvalid as error:
            yield error
        else:
            parts.setdefault(module, {})[part] = tensor
    for module in base.modules:
        if module not in parts:
            continue
        try:
            found = checked_module(module, parts[module], base)
            if config is not None:
                check_target(module, found, config)
        except AdapterInvalid as error:
            yield error
    if config is not None:
        try:
            check_targets(config, base, set(parts))
        except AdapterInvalid as error:
            yield error


def _number_problems(path: Path, tensors: Sequence[Tensor]) -> Iterator[AdapterInvalid]:
    for tensor in tensors:
        try:
            refuse_non_finite(path, (tensor,))
        except AdapterInvalid as error:
            yield error
