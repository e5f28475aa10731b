"""Numbers to the device and back: whole, and without the host waiting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.parcel import Parcel
from inference.readback import Readback
from tests.inference.no_waiting import DEVICE, no_waiting, numberless

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_arrays_arrive_as_they_were() -> None:
    given = {
        "ids": np.array([1, -(1 << 62), 3], np.int64),
        "bytes": np.arange(13, dtype=np.uint8),
        "shares": np.array([0.1, -np.inf, 1e300]),
        "one": np.array([7], np.uint8),
        "amounts": np.array([0.5, np.nan], np.float32),
        "strided": np.arange(10)[::3],
        "square": np.arange(4, dtype=np.float32).reshape(2, 2),
    }
    parcel = Parcel()
    for name, values in given.items():
        parcel.add(name, values)
    parcel.add("nothing", np.array([], np.int64))
    sent = parcel.send(HERE)
    assert list(sent) == list(given)
    for name, values in given.items():
        assert sent[name].device.type == HERE.type
        np.testing.assert_array_equal(sent[name].cpu().numpy(), values.reshape(-1), strict=True)


def test_nothing_to_send() -> None:
    parcel = Parcel()
    parcel.add("nothing", np.array([], np.float32))
    assert parcel.send(HERE) == {}


def test_a_type_that_it_does_not_carry() -> None:
    with pytest.raises(KeyError, match="int32"):
        Parcel().add("ids", np.array([1], np.int32))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_what_is_read_back(dtype: torch.dtype) -> None:
    values = torch.arange(6, device=HERE).view(2, 3).to(dtype)
    found = Readback(values).read()
    assert (found.device.type, found.dtype) == ("cpu", dtype)
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_neither_way_makes_the_host_wait() -> None:
    parcel = Parcel()
    parcel.add("ids", np.array([1, 2]))
    parcel.add("shares", np.array([0.5]))
    with no_waiting():
        sent = parcel.send(DEVICE)
        found = Readback(numberless(2, 3, dtype=torch.int64))
    assert [(part.shape, part.dtype) for part in sent.values()] == [((2,), torch.int64), ((1,), torch.float64)]
    assert (found.read().shape, found.read().device.type) == ((2, 3), "cpu")
