"""Code for a GPU, run without one: on tensors that have a device and no numbers, where waiting for it raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Waited(AssertionError):
    """The host would have waited for the device."""


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        # An index of booleans is looked through for its size, a list or a tensor of the host's is copied while the host
        # waits; here all three look like a good one. So no index at all: there are gather and index_select.
        if name in _INDEXING and args[0].device == DEVICE:
            raise Waited(name)
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags) and name != "aten::index":
            raise Waited(name)
        if name in ("aten::_to_copy", "aten::copy_"):
            source, target = (args[0], kwargs.get("device")) if name == "aten::_to_copy" else (args[1], args[0].device)
            if target is not None and source.device != target:
                if not (kwargs.get("non_blocking") or (name == "aten::copy_" and args[2:] == (True,))):
                    raise Waited(f"{name} from {source.device} to {target}")
                if target.type == "cpu":
                    return args[0]  # on its way
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == DEVICE:
            raise Waited(f"{func.__name__} of the host's numbers")
        return func(*args, **kwargs)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, what waits for :data:`DEVICE` raises :class:`Waited`: reading a number, a shape that depends on numbers,
    a copy that is not ``non_blocking``, and any ``tensor[index]`` by a tensor or a list.
    """
    with _Functions(), _Operations():
        yield


def numberless(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE)


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda given: given[0, 0].item(),
    "bool": lambda given: bool((given > 0).any()),
    "tolist": lambda given: given.tolist(),
    "cpu": lambda given: given.cpu(),
    "nonzero": lambda given: given.nonzero(),
    "mask": lambda given: given[given > 0],
    "list": lambda given: given[[0, 1]],
    "assigned list": lambda given: given.__setitem__([0, 1], 0.0),
    "host's index": lambda given: given[torch.tensor([0, 1])],
    "host's list": lambda given: torch.tensor([1.0, 2.0], device=given.device),
    "blocking copy": lambda given: torch.zeros(3).to(given.device),
    "blocking copy into": lambda given: given[0].copy_(torch.zeros(given.shape[1])),
    "blocking copy back": lambda given: torch.zeros(given.shape).copy_(given),
}
"""Ways of waiting, each to be refused."""
