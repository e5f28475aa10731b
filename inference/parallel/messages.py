"""What rank 0 and the other ranks say to each other, in frames as front and core use them."""

from __future__ import annotations

from dataclasses import dataclass

from inference.core.codec import Codec


@dataclass(frozen=True, slots=True)
class Compute:
    """Rank 0 → all: compute these rows. Not answered: the ranks meet in the sums.

    :param rows: :func:`inference.parallel.rows.pack`. :param forget: adapters that rank 0 holds no longer.
    """

    rows: bytes
    forget: list[int]


@dataclass(frozen=True, slots=True)
class Score:
    """Rank 0 → all: compute logits of the tokens of the last :class:`Compute`.

    :param places: of the tokens. :param slots: the adapter's of each of them.
    """

    places: list[int]
    slots: list[int]


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """Rank 0 → all: read and keep an adapter, beside the steps. Answered by :class:`Held`.

    :param number: what rank 0 calls it.
    """

    number: int
    path: str


@dataclass(frozen=True, slots=True)
class LoadSlot:
    """Rank 0 → all: put a held adapter into a slot."""

    slot: int
    number: int


@dataclass(frozen=True, slots=True)
class ClearSlot:
    slot: int


@dataclass(frozen=True, slots=True)
class Started:
    """Rank → rank 0: its libraries are there, and it goes to meet the others."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rank → rank 0: its part of the model is on its device."""


@dataclass(frozen=True, slots=True)
class Held:
    """Rank → rank 0: the answer to :class:`ReadAdapter`.

    :param num_bytes: that the rank's part takes. :param content: :func:`inference.parallel.part.content_of`.
    :param error: why it holds nothing; ``field`` is its field, where the adapter is to blame (``invalid``).
    """

    number: int
    num_bytes: int = 0
    content: str = ""
    error: str | None = None
    field: str | None = None
    invalid: bool = True


Message = Compute | Score | ReadAdapter | LoadSlot | ClearSlot | Started | Loaded | Held

_CODEC: Codec[Message] = Codec(Compute, Score, ReadAdapter, LoadSlot, ClearSlot, Started, Loaded, Held)
encode, read = _CODEC.encode, _CODEC.read
