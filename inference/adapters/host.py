"""Reads a PEFT directory of the content store into host memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference.adapter_format import (
    TENSORS_FILE,
    AdapterSpec,
    AdapterTarget,
    BaseShapes,
    check_adapter,
    content_digest,
)
from inference.errors import AdapterInvalid
from inference.models.lora import SITES
from sgmv import SlotWeights

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """One adapter, ready for a slot.

    :param sites: per layer, site name → weights; a site that the adapter leaves alone is absent. Ranks are true.
    """

    sites: tuple[dict[str, SlotWeights], ...]
    num_bytes: int
    max_rank: int


def read_adapter(directory: Path, base: BaseShapes, num_layers: int, dtype: torch.dtype) -> HostAdapter:
    """Check and read an adapter; reads no shared state, so it may run beside anything.

    A directory named by a sha256 is in the content store: what it holds has to have that digest, checked after the
    tensors were read.

    :raises AdapterInvalid: ``field`` names the file, key or tensor.
    """
    spec = check_adapter(directory, base)
    tensors = _tensors(directory / TENSORS_FILE, spec, dtype)
    if _DIGEST.fullmatch(directory.name) and content_digest(directory) != directory.name:
        raise AdapterInvalid(f"the content of {directory.name} does not have that digest", TENSORS_FILE)
    targets = {target.module: target for target in spec.targets}
    sites = tuple(_layer(f"model.layers.{index}.", targets, tensors) for index in range(num_layers))
    placed = sum(a is not None for layer in sites for weights in layer.values() for a in weights.a)
    assert placed == len(targets), "check_adapter let a module through that no site serves"
    return HostAdapter(sites, spec.num_bytes, spec.max_rank)


def _tensors(path: Path, spec: AdapterSpec, dtype: torch.dtype) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for target in spec.targets for name in (target.a, target.b)]
            # A clone, because safetensors maps the file: weights must not change with it after the digest check.
            return {name: file.get_tensor(name).to(dtype, copy=True) for name in names}
    except (SafetensorError, OSError) as error:
        raise AdapterInvalid(f"{path.name}: {error}", path.name) from error


def _layer(prefix: str, targets: dict[str, AdapterTarget], tensors: dict[str, Tensor]) -> dict[str, SlotWeights]:
    result = {}
    for site, modules in SITES.items():
        found = [targets.get(prefix + module) for module in modules]
        if any(found):
            result[site] = SlotWeights(
                a=tuple(None if target is None else tensors[target.a] for target in found),
                b=tuple(None if target is None else tensors[target.b] for target in found),
                scaling=tuple(0.0 if target is None else target.scaling for target in found),
            )
    return result
