"""What a PEFT LoRA adapter on disk has to be, checked without torch: at intake, and again where it is loaded.

The tensors are the ground truth: every A has its B, shapes fit the base model, ranks agree, no number is NaN or
infinite, and ``adapter_config.json`` agrees with all of it. The check allocates little and runs nothing, whatever the
files hold.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from inference.adapter_config import LoraConfig, parse_config
from inference.adapter_pattern import suffixes
from inference.adapter_tensors import ModuleTensors, by_module
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid, AdapterNotFound
from inference.model_config import EMBEDDING
from inference.safetensors_header import load_json, open_regular, read_header, refuse_non_finite, shown

CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
STORED_FILES = (CONFIG_FILE, TENSORS_FILE)
"""The files of an adapter, in canonical order."""
IGNORED_FILES = frozenset({"README.md", "golden.json"})
MAX_CONFIG_BYTES = 64 << 10
MAX_TENSOR_BYTES = 2 << 30

_DIGEST = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """One adapted module, ``W' = W + scaling · B A``: its input is a hidden state, or a one-hot token at the embedding.

    With a ``magnitude`` (DoRA) each row of ``W'`` is also scaled to that Euclidean length.

    :param module: ``model.layers.3.self_attn.q_proj``, ``model.embed_tokens`` or ``lm_head``.
    :param a: name of the tensor A ``[rank, in_features]`` in the file.
    :param b: name of the tensor B ``[out_features, rank]`` in the file.
    :param magnitude: name of the tensor ``[out_features]`` in the file, or ``None``.
    :param copy: name of the tensor with the base model's own weights that PEFT saved beside it, or ``None``. It is no
        part of the adapter, and the worker refuses one that differs from its base.
    """

    module: str
    rank: int
    scaling: float
    a: str
    b: str
    magnitude: str | None = None
    copy: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """:param targets: in the base model's order of modules.
    :param dtype: ``F32``, ``F16`` or ``BF16``; the same for every A and B.
    :param num_bytes: of tensor data, copies of the base model's weights left out.
    """

    targets: tuple[AdapterTarget, ...]
    dtype: str
    num_bytes: int
    max_rank: int


def check_adapter(directory: Path, base: BaseShapes) -> AdapterSpec:
    """Check an adapter's directory against its base model; read every byte once.

    Raises :class:`~inference.errors.AdapterInvalid`, whose ``field`` names the file, key or tensor at fault.
    """
    check_listing(directory)
    config = parse_config(load_json(read_config(directory / CONFIG_FILE), CONFIG_FILE))
    path = directory / TENSORS_FILE
    with open_regular(path) as (_, size):
        if size > MAX_TENSOR_BYTES:
            raise AdapterInvalid(f"{TENSORS_FILE} has {size} bytes; at most {MAX_TENSOR_BYTES} are accepted", path.name)
    tensors = read_header(path)
    modules = by_module(tensors, base)
    targets = tuple(check_target(module, found, config) for module, found in modules.items())
    check_targets(config, base, set(modules))
    dtypes = sorted({tensor.dtype for found in modules.values() for tensor in (found.a, found.b)})
    if len(dtypes) > 1:
        raise AdapterInvalid(f"{TENSORS_FILE} mixes the data types {', '.join(dtypes)}", TENSORS_FILE)
    refuse_non_finite(path, tensors)
    return AdapterSpec(
        targets=targets,
        dtype=dtypes[0],
        num_bytes=sum(t.num_bytes for found in modules.values() for t in (found.a, found.b, found.magnitude) if t),
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


def read_config(path: Path) -> bytes:
    """The bytes of ``adapter_config.json``. Raises :class:`~inference.errors.AdapterInvalid`."""
    with open_regular(path) as (file, size):
        if size > MAX_CONFIG_BYTES:
            raise AdapterInvalid(f"{path.name} has {size} bytes; at most {MAX_CONFIG_BYTES} are accepted", path.name)
        return file.read(MAX_CONFIG_BYTES)


def check_target(module: str, found: ModuleTensors, config: LoraConfig) -> AdapterTarget:
    """One module's tensors as the configuration means them. Raises :class:`~inference.errors.AdapterInvalid`."""
    a, rank = found.a, found.a.shape[0]
    if config.rank_of(module) != rank:
        raise AdapterInvalid(
            f"tensor {shown(a.name)} has rank {rank}, {CONFIG_FILE} says {config.rank_of(module)} (r, rank_pattern)",
            "r",
        )
    if config.use_dora and module == EMBEDDING:
        raise AdapterInvalid(f"use_dora is not supported with {EMBEDDING}", "use_dora")
    if config.use_dora and found.magnitude is None:
        raise AdapterInvalid(f"use_dora is set, but {module} has no lora_magnitude_vector", "use_dora")
    if found.magnitude is not None and not config.use_dora:
        name = found.magnitude.name
        raise AdapterInvalid(f"tensor {shown(name)} is DoRA's, but use_dora is not set", name)
    names = (None if tensor is None else tensor.name for tensor in (found.magnitude, found.copy))
    return AdapterTarget(module, rank, config.scaling_of(module), a.name, found.b.name, *names)


def check_targets(config: LoraConfig, base: BaseShapes, present: set[str]) -> None:
    """Raise :class:`~inference.errors.AdapterInvalid` unless the modules that the file targets are exactly those that
    have tensors.
    """
    for module in present:
        if config.excludes(module):
            raise AdapterInvalid(f"there are tensors for {module}, which exclude_modules leaves out", "exclude_modules")
    targeted = config.targeted(base.modules, base.linears())
    if targeted is None:
        return
    for module in base.modules:
        if module in targeted and module not in present:
            raise AdapterInvalid(f"target_modules names {module}, for which there are no tensors", "target_modules")
        if module in present and module not in targeted:
            raise AdapterInvalid(
                f"there are tensors for {module}, which target_modules and layers_to_transform leave out",
                "target_modules",
            )
    if isinstance(config.target_modules, tuple):
        known = set(base.modules).union(*map(suffixes, base.modules))
        for name in config.target_modules:
            if name not in known:
                raise AdapterInvalid(
                    f"target_modules names {shown(name)}, which the base model does not have", "target_modules"
                )


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


def is_digest(name: str) -> bool:
    """Whether it has the form of one: a directory of that name has to hold what its name says."""
    return _DIGEST.fullmatch(name) is not None


def store_path(store: Path, digest: str) -> Path:
    """Where the content store keeps it. Raises :class:`~inference.errors.AdapterNotFound` for what is no digest."""
    if not is_digest(digest):
        raise AdapterNotFound(f"{shown(digest)} is not an adapter's digest")
    return store / digest[:2] / digest
