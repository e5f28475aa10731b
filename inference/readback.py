"""A device's numbers on their way to the host, to be read when they are needed."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.parcel import host_bytes


class Readback:
    """A copy to pinned memory that begins once the device has computed ``values``, without the host waiting for it.

    :param values: of any device and shape; on the CPU there is nothing to copy.
    """

    def __init__(self, values: Tensor) -> None:
        self._host, self._done = values, None
        if values.device.type == "cpu":
            return
        size = values.numel() * values.element_size()
        self._host = host_bytes(size, values.device).view(values.dtype).view(values.shape)
        self._host.copy_(values, non_blocking=True)
        if values.is_cuda:
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(torch.cuda.current_stream(values.device))

    def read(self) -> Tensor:
        """The numbers, on the host. Waits for the device to come to them, not for what was launched later."""
        if self._done is not None:
            self._done.synchronize()
        return self._host
