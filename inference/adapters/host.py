"""Reads a PEFT directory of the content store into host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from inference.adapter_format import (
    TENSORS_FILE,
    AdapterSpec,
    AdapterTarget,
    check_adapter,
    content_digest,
    is_digest,
)
from inference.adapters.dora import fold_magnitude
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid
from inference.model_config import EMBEDDING, HEAD, ModelConfig
from inference.models.checkpoint import Checkpoint
from inference.models.lora import SITES, site_shapes
from sgmv import EmbeddingWeights, SlotWeights


@dataclass(frozen=True, slots=True)
class HostLayer:
    """What an adapter changes in one layer; a site that it leaves alone is absent. Ranks are true.

    :param gains: site → DoRA's ``g − 1`` over the site's whole output, where the adapter has any.
    """

    sites: dict[str, SlotWeights]
    gains: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """One adapter, ready for a slot. :param num_bytes: of its tensors in the file.
    :param memory: that all sites' matrices have, where they are laid out, see :mod:`inference.adapters.laid_out`.
    """

    layers: tuple[HostLayer, ...]
    num_bytes: int
    max_rank: int
    embedding: EmbeddingWeights | None = None
    head: SlotWeights | None = None
    head_gain: Tensor | None = None
    memory: tuple[Tensor, ...] | None = None

    @property
    def has_gains(self) -> bool:
        """Whether any layer has."""
        return any(layer.gains for layer in self.layers)

    @property
    def held_bytes(self) -> int:
        """Host memory that it takes, what is left over in the pieces of :attr:`memory` included."""
        left = sum(piece.untyped_storage().nbytes() - piece.nbytes for piece in self.memory or ())
        return self.slot_bytes + left

    @property
    def slot_bytes(self) -> int:
        """Memory that its tensors take, in the dtype they are computed in, or held in where they are laid out."""
        sites = [weights for layer in self.layers for weights in layer.sites.values()]
        matrices = [m for weights in (*sites, self.head) if weights is not None for m in (*weights.a, *weights.b)]
        if self.memory is not None:
            matrices = list(self.memory)
        gains = [gain for layer in self.layers for gain in layer.gains.values()]
        extra = [] if self.embedding is None else [self.embedding.a, self.embedding.b]
        return sum(tensor.nbytes for tensor in (*matrices, *gains, *extra, self.head_gain) if tensor is not None)


@dataclass(frozen=True, slots=True)
class _Module:
    """One adapted module's matrices. :param excess: DoRA's ``g − 1``; ``b`` is then scaled by ``g`` already."""

    a: Tensor
    b: Tensor
    scaling: float
    excess: Tensor | None


def read_adapter(directory: Path, config: ModelConfig, base: Checkpoint, dtype: torch.dtype) -> HostAdapter:
    """Check and read an adapter; reads no shared state, so it may run beside anything.

    A directory named by a sha256 is in the content store: what it holds has to have that digest, checked after the
    tensors were read.

    :param base: the base model's weights, which DoRA's lengths and the copies that PEFT saves are compared with.
    :raises AdapterInvalid: ``field`` names the file, key or tensor.
    """
    spec = check_adapter(directory, BaseShapes.of(config))
    tensors = _tensors(directory / TENSORS_FILE, spec)
    if is_digest(directory.name) and content_digest(directory) != directory.name:
        raise AdapterInvalid(f"the content of {directory.name} does not have that digest", TENSORS_FILE)
    _check_copies(spec, tensors, config, base)
    modules = {target.module: _module(target, tensors, config, base, dtype) for target in spec.targets}
    shapes = site_shapes(config)
    layers = tuple(_layer(f"model.layers.{index}.", modules, shapes) for index in range(config.num_layers))
    placed = sum(a is not None for layer in layers for weights in layer.sites.values() for a in weights.a)
    assert placed == len(modules.keys() - {EMBEDDING, HEAD}), "check_adapter let a module through that no site serves"
    embedding, head = modules.get(EMBEDDING), modules.get(HEAD)
    return HostAdapter(
        layers,
        spec.num_bytes,
        spec.max_rank,
        embedding=None if embedding is None else _embedding(embedding),
        head=None if head is None else _site([head]),
        head_gain=None if head is None else head.excess,
    )


def _tensors(path: Path, spec: AdapterSpec) -> dict[str, Tensor]:
    names = [n for t in spec.targets for n in (t.a, t.b, t.magnitude, t.copy) if n is not None]
    try:
        # From bytes, not from the mapped file: weights must not change with it after the digest check. And safetensors
        # 0.8 never frees two integers of every tensor that safe_open reads: 27 kB an adapter of a small model.
        found = load(path.read_bytes())
        return {name: found[name] for name in names}
    except (SafetensorError, OSError, KeyError) as error:
        raise AdapterInvalid(f"{path.name}: {error}", path.name) from error


def _check_copies(spec: AdapterSpec, tensors: dict[str, Tensor], config: ModelConfig, base: Checkpoint) -> None:
    """PEFT would replace the base model's weights by these. They say the same, or the adapter is for another base."""
    shape = (config.vocab_size, config.hidden_size)
    for target in spec.targets:
        if target.copy is None:
            continue
        copy = tensors.pop(target.copy)
        own = base.tensor(f"{EMBEDDING if config.tied else target.module}.weight", shape)
        if not torch.equal(copy, own.to(copy.dtype)):
            raise AdapterInvalid(
                f"tensor {target.copy!r} differs from the base model's own weights: the adapter was made for another "
                "base (save it with save_embedding_layers=False if it was not)",
                target.copy,
            )


def _module(
    target: AdapterTarget, tensors: dict[str, Tensor], config: ModelConfig, base: Checkpoint, dtype: torch.dtype
) -> _Module:
    a, b, excess = tensors[target.a], tensors[target.b], None
    if target.magnitude is not None:
        name = f"{EMBEDDING if config.tied and target.module == HEAD else target.module}.weight"
        weight = base.tensor(name, (b.shape[0], a.shape[1]))
        made = fold_magnitude(weight, a, b, target.scaling, tensors[target.magnitude])
        if made is None:
            raise AdapterInvalid(
                f"tensor {target.magnitude!r}: a row of the adapted weights has no length to scale", target.magnitude
            )
        b, excess = made
        excess = _finite(excess, target.magnitude, dtype)
        b = _finite(b, target.b, dtype)
    return _Module(_converted(a, target.a, dtype), _converted(b, target.b, dtype), target.scaling, excess)


def _converted(tensor: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """The file's numbers are finite, which has been checked; what becomes of them in another type has to be as well."""
    return tensor if tensor.dtype == dtype else _finite(tensor, name, dtype)


def _finite(tensor: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    tensor = tensor.to(dtype)
    if not tensor.isfinite().all():
        raise AdapterInvalid(f"tensor {name!r} holds numbers that are too large for {dtype}", name)
    return tensor


def _layer(prefix: str, modules: dict[str, _Module], shapes: dict[str, tuple[int, tuple[int, ...]]]) -> HostLayer:
    layer = HostLayer({})
    for site, (_, slices) in shapes.items():
        found = [modules.get(prefix + module) for module in SITES[site]]
        if not any(found):
            continue
        layer.sites[site] = _site(found)
        if any(module is not None and module.excess is not None for module in found):
            dtype = next(module.a.dtype for module in found if module is not None)
            parts = [
                torch.zeros(width, dtype=dtype, device="cpu")
                if module is None or module.excess is None
                else module.excess
                for module, width in zip(found, slices, strict=True)
            ]
            layer.gains[site] = torch.cat(parts)
    return layer


def _site(modules: Sequence[_Module | None]) -> SlotWeights:
    return SlotWeights(
        a=tuple(None if module is None else module.a for module in modules),
        b=tuple(None if module is None else module.b for module in modules),
        scaling=tuple(0.0 if module is None else module.scaling for module in modules),
    )


def _embedding(module: _Module) -> EmbeddingWeights:
    return EmbeddingWeights(module.a.t().contiguous(), (module.b * module.scaling).t().contiguous())
