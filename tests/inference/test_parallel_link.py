"""The connection between rank 0 and another: frames, and ends that are gone or do not read."""

from __future__ import annotations

import io
import socket
import threading
import time

import pytest

from inference.core.codec import MAX_FRAME_BYTES, Codec
from inference.parallel.link import Link
from inference.parallel.messages import ClearSlot, Compute, Held, LoadSlot, Message, encode


def test_a_frame_that_is_no_message_is_refused() -> None:
    codec: Codec[Message] = Codec(LoadSlot, Held)
    frame = codec.encode(Held(3, 5, "x", None, "tensor"))
    assert len(frame) == 4 + int.from_bytes(frame[:4], "little")
    assert codec.decode(frame[4:]) == Held(3, 5, "x", None, "tensor")
    for broken in (b"", b"\xc1", codec.encode(LoadSlot(1, 2))[4:-1], b"\x91\xa3Foo", encode(ClearSlot(1))[4:]):
        with pytest.raises(ValueError, match="not a message"):
            codec.decode(broken)


def test_a_frame_that_is_cut_short_is_no_message_and_an_end_is_no_fault() -> None:
    codec: Codec[Message] = Codec(LoadSlot, Held)
    frame = codec.encode(Held(3, 5, "x", None, "tensor"))
    stream = io.BytesIO(frame + frame)
    assert codec.read(stream) == codec.read(stream) == Held(3, 5, "x", None, "tensor")
    assert codec.read(stream) is None
    for size in (2, 4, len(frame) - 1):
        with pytest.raises(ValueError, match=r"broken frame|cut short"):
            codec.read(io.BytesIO(frame[:size]))
    with pytest.raises(ValueError, match="broken frame"):
        codec.read(io.BytesIO((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


def test_many_threads_share_a_connection_without_mixing_frames() -> None:
    ours, theirs = socket.socketpair()
    sender, reader = Link(ours), Link(theirs)
    big = bytes(300_000)

    def send(number: int) -> None:
        for step in range(20):
            sender.send(encode(Compute(big, [number, step])))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    messages = reader.messages()
    found = [next(messages) for _ in range(80)]
    for thread in threads:
        thread.join()
    sender.close()
    assert list(messages) == []
    order = [message.forget for message in found if isinstance(message, Compute) and message.rows == big]
    assert all([step for one, step in order if one == number] == list(range(20)) for number in range(4))


def test_one_that_does_not_read_holds_up_a_sender_only_so_long() -> None:
    """The block tables of 64 rows of 16,384 tokens are 262 kB, more than a connection takes unread."""
    ours, theirs = socket.socketpair()
    sender, reader = Link(ours, patience=0.3), Link(theirs)
    failures: list[OSError] = []

    def send() -> None:
        try:
            sender.send(encode(Compute(bytes(1_000_000), [])))
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(10)
    assert [(type(error), str(error)) for error in failures] == [(TimeoutError, "it does not read what it is told")]
    with pytest.raises(OSError, match="Broken pipe"):  # not the rest of a frame whose start nobody took
        sender.send(encode(ClearSlot(1)))
    assert list(sender.messages()) == [], "whoever listens learns of it too"
    with pytest.raises(ValueError, match="cut short"):
        list(reader.messages())


def test_one_that_is_told_nothing_is_not_thought_gone() -> None:
    ours, theirs = socket.socketpair()
    lead, rank = Link(ours, patience=0.05), Link(theirs)
    heard: list[Message] = []
    listener = threading.Thread(target=lambda: heard.extend(lead.messages()))
    listener.start()
    time.sleep(0.3)
    rank.send(encode(Held(1)))
    rank.close()
    listener.join()
    assert heard == [Held(1)]
