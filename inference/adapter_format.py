"""What a PEFT LoRA adapter on disk has to be, checked without torch: at intake, and again where it is loaded.

The tensors are the ground truth: every A has its B, shapes fit the base model, ranks agree, no number is NaN or
infinite, and ``adapter_config.json`` agrees with all of it. The check allocates little and runs nothing, whatever the
files hold.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.adapter_config import LoraConfig, parse_config, suffixes
from inference.errors import AdapterInvalid, AdapterNotFound, UnsupportedModel
from inference.safetensors_header import Tensor, load_json, open_regular, read_header, refuse_non_finite, shown

CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
STORED_FILES = (CONFIG_FILE, TENSORS_FILE)
"""The files of an adapter, in canonical order."""
IGNORED_FILES = frozenset({"README.md"})
MAX_CONFIG_BYTES = 64 << 10
MAX_TENSOR_BYTES = 2 << 30
MAX_RANK = 256

_TENSOR_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """One adapted linear module: ``y += scaling · B(A x)``.

    :param module: ``model.layers.3.self_attn.q_proj``.
    :param a: name of the tensor A ``[rank, in_features]`` in the file.
    :param b: name of the tensor B ``[out_features, rank]`` in the file.
    """

    module: str
    rank: int
    scaling: float
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """:param targets: in the base model's order of modules.
    :param dtype: ``F32``, ``F16`` or ``BF16``; the same for every tensor.
    :param num_bytes: of tensor data.
    """

    targets: tuple[AdapterTarget, ...]
    dtype: str
    num_bytes: int
    max_rank: int


@dataclass(frozen=True, slots=True)
class BaseShapes:
    """:param linear: module name → (out_features, in_features) of every linear that an adapter may change."""

    linear: Mapping[str, tuple[int, int]]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BaseShapes:
        """Read a Llama-like ``config.json``. Raises :class:`~inference.errors.UnsupportedModel` naming the key."""

        def size(key: str, default: int | None = None) -> int:
            value = config.get(key)
            value = default if value is None else value
            if type(value) is not int or value < 1:
                raise UnsupportedModel(f"config.json: {key} has to be a whole number from 1")
            return value

        hidden, inner, heads = size("hidden_size"), size("intermediate_size"), size("num_attention_heads")
        head_dim = size("head_dim", hidden // heads)
        query, key_value = heads * head_dim, size("num_key_value_heads", heads) * head_dim
        layer = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key_value, hidden),
            "self_attn.v_proj": (key_value, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        return cls(
            {
                f"model.layers.{index}.{name}": shape
                for index in range(size("num_hidden_layers"))
                for name, shape in layer.items()
            }
        )


def check_adapter(directory: Path, base: BaseShapes) -> AdapterSpec:
    """Check an adapter's directory against its base model; read every byte once.

    Raises :class:`~inference.errors.AdapterInvalid`, whose ``field`` names the file, key or tensor at fault.
    """
    check_listing(directory)
    config = parse_config(load_json(_read_config(directory / CONFIG_FILE), CONFIG_FILE))
    path = directory / TENSORS_FILE
    with open_regular(path) as (_, size):
        if size > MAX_TENSOR_BYTES:
            raise AdapterInvalid(f"{TENSORS_FILE} has {size} bytes; at most {MAX_TENSOR_BYTES} are accepted", path.name)
    tensors = read_header(path)
    pairs = _pairs(tensors, base)
    targets = tuple(_target(module, *pairs[module], config) for module in base.linear if module in pairs)
    _check_targets(config, base, set(pairs))
    dtypes = sorted({tensor.dtype for tensor in tensors})
    if len(dtypes) > 1:
        raise AdapterInvalid(f"{TENSORS_FILE} mixes the data types {', '.join(dtypes)}", TENSORS_FILE)
    refuse_non_finite(path, tensors)
    return AdapterSpec(
        targets=targets,
        dtype=dtypes[0],
        num_bytes=sum(tensor.num_bytes for tensor in tensors),
        max_rank=max(target.rank for target in targets),
    )


def check_listing(directory: Path) -> None:
    """Raise :class:`~inference.errors.AdapterInvalid` unless the directory holds an adapter's files only."""
    try:
        names = {entry.name for entry in os.scandir(directory)}
    except OSError as error:
        raise AdapterInvalid(f"the adapter's directory cannot be read: {error.strerror}") from None
    for name in STORED_FILES:
        if name not in names:
            raise AdapterInvalid(f"{name} is missing", name)
    unexpected = sorted(names - {*STORED_FILES, *IGNORED_FILES})
    if unexpected:
        raise AdapterInvalid(
            f"{shown(unexpected[0])} does not belong to an adapter: exactly {CONFIG_FILE} and {TENSORS_FILE} do",
            unexpected[0],
        )


def _read_config(path: Path) -> bytes:
    with open_regular(path) as (file, size):
        if size > MAX_CONFIG_BYTES:
            raise AdapterInvalid(f"{path.name} has {size} bytes; at most {MAX_CONFIG_BYTES} are accepted", path.name)
        return file.read(MAX_CONFIG_BYTES)


def _pairs(tensors: tuple[Tensor, ...], base: BaseShapes) -> dict[str, tuple[Tensor, Tensor]]:
    """Module → (A, B), with shapes that fit the base and each other."""
    found: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        match = _TENSOR_NAME.fullmatch(tensor.name)
        if match is None:
            raise AdapterInvalid(
                f"tensor {shown(tensor.name)} is not base_model.model.<module>.lora_A.weight or lora_B.weight",
                tensor.name,
            )
        module, side = match.groups()
        if module not in base.linear:
            raise AdapterInvalid(
                f"tensor {shown(tensor.name)}: the base model has no adaptable module {shown(module)}", tensor.name
            )
        found.setdefault(module, {})[side] = tensor
    pairs = {}
    for module, sides in found.items():
        if len(sides) != 2:
            [(side, tensor)] = sides.items()
            raise AdapterInvalid(
                f"tensor {shown(tensor.name)} has no lora_{'B' if side == 'A' else 'A'} beside it", tensor.name
            )
        a, b = sides["A"], sides["B"]
        rows, columns = base.linear[module]
        if len(a.shape) != 2 or a.shape[1] != columns or a.shape[0] > MAX_RANK:
            raise AdapterInvalid(
                f"tensor {shown(a.name)} has shape {list(a.shape)}; [rank ≤ {MAX_RANK}, {columns}] is expected", a.name
            )
        if b.shape != (rows, a.shape[0]):
            raise AdapterInvalid(
                f"tensor {shown(b.name)} has shape {list(b.shape)}; {[rows, a.shape[0]]} is expected", b.name
            )
        pairs[module] = (a, b)
    return pairs


def _target(module: str, a: Tensor, b: Tensor, config: LoraConfig) -> AdapterTarget:
    rank = a.shape[0]
    if config.rank_of(module) != rank:
        raise AdapterInvalid(
            f"tensor {shown(a.name)} has rank {rank}, {CONFIG_FILE} says {config.rank_of(module)} (r, rank_pattern)",
            "r",
        )
    return AdapterTarget(module, rank, config.scaling_of(module), a.name, b.name)


def _check_targets(config: LoraConfig, base: BaseShapes, present: set[str]) -> None:
    """The modules that the file targets are exactly those that have tensors."""
    targeted = config.targeted(base.linear)
    if targeted is None:
        return
    for module in base.linear:
        if module in targeted and module not in present:
            raise AdapterInvalid(f"target_modules names {module}, for which there are no tensors", "target_modules")
        if module in present and module not in targeted:
            raise AdapterInvalid(
                f"there are tensors for {module}, which target_modules and layers_to_transform leave out",
                "target_modules",
            )
    if isinstance(config.target_modules, tuple):
        known = present.union(*map(suffixes, present))
        for name in config.target_modules:
            if name not in known:
                raise AdapterInvalid(f"target_modules names {shown(name)}, which matches no tensor", "target_modules")


def content_digest(directory: Path) -> str:
    """Hex sha256 over the adapter's two files, each preceded by its name and length: the adapter's identity.

    Raises :class:`~inference.errors.AdapterInvalid` when a file is missing or changes its size meanwhile.
    """
    digest = hashlib.sha256(b"loraplex adapter 1\n")
    for name in STORED_FILES:
        with open_regular(directory / name) as (file, size):
            digest.update(f"{name}:{size}\n".encode())
            left = size
            while left and (data := file.read(min(left, _READ_BYTES))):
                digest.update(data)
                left -= len(data)
            if left or file.read(1):
                raise AdapterInvalid(f"{name} changed while it was read", name)
    return digest.hexdigest()


def store_path(store: Path, digest: str) -> Path:
    """Where the content store keeps it. Raises :class:`~inference.errors.AdapterNotFound` for what is no digest."""
    if not _DIGEST.fullmatch(digest):
        raise AdapterNotFound(f"{shown(digest)} is not an adapter's digest")
    return store / digest[:2] / digest
