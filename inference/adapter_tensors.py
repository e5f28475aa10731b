"""Which tensors of an adapter's file belong together, and whether their shapes fit the base model. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid
from inference.model_config import EMBEDDING, HEAD
from inference.safetensors_header import Tensor, shown

MAX_RANK = 256

# What PEFT's names end in → the part, for linear modules and for the embedding.
_LINEAR_PARTS = {
    "lora_A.weight": "A",
    "lora_B.weight": "B",
    "lora_magnitude_vector": "magnitude",
    "base_layer.weight": "copy",
}
_EMBEDDING_PARTS = {"lora_embedding_A": "A", "lora_embedding_B": "B", "base_layer.weight": "copy"}
_ENDINGS = "|".join(re.escape(ending) for ending in {**_LINEAR_PARTS, **_EMBEDDING_PARTS})
_TENSOR_NAME = re.compile(rf"base_model\.model\.(.+?)\.({_ENDINGS})")


@dataclass(frozen=True, slots=True)
class ModuleTensors:
    """The tensors of one adapted module.

    :param a: ``[rank, in_features]``. :param b: ``[out_features, rank]``.
    :param magnitude: DoRA's, ``[out_features]``.
    :param copy: the base model's own weights ``[vocabulary, hidden]``, which PEFT saves beside an adapted embedding or
        head.
    """

    a: Tensor
    b: Tensor
    magnitude: Tensor | None
    copy: Tensor | None


def by_module(tensors: tuple[Tensor, ...], base: BaseShapes) -> dict[str, ModuleTensors]:
    """Group a file's tensors, in the base model's order. Raises :class:`AdapterInvalid` naming the tensor at fault."""
    found: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        module, part = part_of(tensor.name, base)
        found.setdefault(module, {})[part] = tensor
    return {module: checked_module(module, found[module], base) for module in base.modules if module in found}


def part_of(name: str, base: BaseShapes) -> tuple[str, str]:
    """The module that a tensor's name means, and which part of it: ``A``, ``B``, ``magnitude`` or ``copy``.

    Raises :class:`AdapterInvalid`.
    """
    match = _TENSOR_NAME.fullmatch(name)
    if match is None:
        raise AdapterInvalid(
            f"tensor {shown(name)} is not base_model.model.<module>.lora_A.weight, lora_B.weight or another "
            "tensor of a LoRA or DoRA adapter",
            name,
        )
    module, ending = match.groups()
    if module not in base.modules:
        raise AdapterInvalid(f"tensor {shown(name)}: the base model has no adaptable module {shown(module)}", name)
    if module == EMBEDDING and ending == "lora_magnitude_vector":
        raise AdapterInvalid(f"tensor {shown(name)}: DoRA (use_dora) is not supported on the embedding", name)
    part = (_EMBEDDING_PARTS if module == EMBEDDING else _LINEAR_PARTS).get(ending)
    if part is None or (part == "copy" and module not in (EMBEDDING, HEAD)):
        raise AdapterInvalid(f"tensor {shown(name)}: {ending} does not belong to {module}", name)
    return module, part


def checked_module(module: str, parts: dict[str, Tensor], base: BaseShapes) -> ModuleTensors:
    """Raises :class:`AdapterInvalid` unless a module's parts fit together and fit the base model."""
    for side, other in (("A", "B"), ("B", "A")):
        if side not in parts:
            name = next(iter(parts.values())).name if other not in parts else parts[other].name
            raise AdapterInvalid(f"tensor {shown(name)} has no lora_{side} beside it", name)
    rows, columns = base.modules[module]
    a, b, magnitude, copy = parts["A"], parts["B"], parts.get("magnitude"), parts.get("copy")
    if len(a.shape) != 2 or a.shape[1] != columns or a.shape[0] > MAX_RANK:
        raise AdapterInvalid(
            f"tensor {shown(a.name)} has shape {list(a.shape)}; [rank ≤ {MAX_RANK}, {columns}] is expected", a.name
        )
    expected: list[tuple[Tensor, tuple[int, ...]]] = [(b, (rows, a.shape[0]))]
    if magnitude is not None:
        expected.append((magnitude, (rows,)))
    if copy is not None:
        expected.append((copy, (columns, rows) if module == EMBEDDING else (rows, columns)))
    for tensor, shape in expected:
        if tensor.shape != shape:
            raise AdapterInvalid(
                f"tensor {shown(tensor.name)} has shape {list(tensor.shape)}; {list(shape)} is expected", tensor.name
            )
    return ModuleTensors(a, b, magnitude, copy)
