"""A runner without a model: its tokens are a hash of the sequence and of the adapter, its KV pool remembers who wrote.

What a row reads from its blocks is compared with what should be there, so that a scheduler that mixes up blocks, slots
or positions fails at the step that does it. Run as a program it is a whole core process for the front's tests.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inference.adapter_format import content_digest
from inference.core import process
from inference.core.limits import Limits
from inference.core.loop import Loop
from inference.core.process import prepare, serve
from inference.core.step import BASE_SLOT, UNKNOWN, Done, Row, Sampled
from inference.errors import AdapterInvalid
from inference.protocol import TokenLogprob


class FakeRunner:
    kv_dtype = "fake"

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        num_slots: int = 2,
        max_model_len: int = 64,
        vocab_size: int = 50,
        eos: int | None = 0,
        step_seconds: float = 0.0,
        memory: int | None = None,
        ahead: bool = False,
    ) -> None:
        """:param memory: how many of the last tokens decide about the next; few of them make texts that repeat.
        :param ahead: takes rows that follow those of the step before.
        """
        self.ahead = ahead
        self.last: list[Sampled | None] = []
        self.num_blocks, self.block_size, self.num_slots = num_blocks, block_size, num_slots
        self.max_model_len, self.vocab_size = max_model_len, vocab_size
        self.eos_token_ids = frozenset() if eos is None else frozenset([eos])
        self.step_seconds = step_seconds
        self.memory = memory
        self.slots: dict[int, str] = {}
        self.pool: dict[int, tuple[int, int, str]] = {}
        self.steps = 0
        self.max_rows = 0

    def next_token(self, tokens: Sequence[int], adapter: str) -> int:
        known = tokens if self.memory is None else tokens[-self.memory :]
        return zlib.crc32(repr((list(known), adapter)).encode()) % self.vocab_size

    def launch(self, rows: Sequence[Row]) -> Done:
        assert self.ahead or all(row.follows is None for row in rows)
        self.last = self.run([self._known(row) for row in rows])
        return Done(self.last)

    def _known(self, row: Row) -> Row:
        """With the token that the row of the step before got."""
        assert UNKNOWN not in row.tokens[:-1]
        assert UNKNOWN not in row.output[:-1]
        assert (row.follows is not None) == (row.tokens[-1] == UNKNOWN)
        if row.follows is None:
            assert row.params is None or UNKNOWN not in row.output, "the end of an output that the row does not know"
            return row
        followed = self.last[row.follows]
        assert followed is not None
        token = followed.tokens[0] if followed.tokens else 0  # some, as a device has, where its numbers are none
        assert row.output[-1] == UNKNOWN
        return replace(row, tokens=[*row.tokens[:-1], token], output=[*row.output[:-1], token])

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.steps += 1
        self.max_rows = max(self.max_rows, len(rows))
        written: set[int] = set()
        results: list[Sampled | None] = []
        for row in rows:
            adapter = "" if row.slot == BASE_SLOT else self.slots[row.slot]
            assert row.tokens, "a row without tokens"
            for offset, token in enumerate(row.tokens):
                place = self._place(row, row.start + offset)
                assert place not in written, "two rows write one place"
                written.add(place)
                self.pool[place] = (row.start + offset, token, adapter)
        for row in rows:
            adapter = "" if row.slot == BASE_SLOT else self.slots[row.slot]
            known = len(row.prompt) + len(row.output)
            everything = [*row.prompt, *row.output, *row.tokens[len(row.tokens) - row.draft :]]
            end = row.start + len(row.tokens)
            for position in range(end):
                expected = (position, everything[position], adapter)
                assert self.pool.get(self._place(row, position)) == expected, "wrong KV"
            assert (row.params is None) == (end < len(everything)), "sampled too early or not at all"
            assert not (row.draft and row.params is None), "guesses in the middle of a prompt"
            results.append(self._result(row, everything, known, adapter))
        return results

    def _result(self, row: Row, everything: list[int], known: int, adapter: str) -> Sampled | None:
        """A token after the last known one and after each right guess; scores that name prompt, position and token."""
        if row.params is None and row.prompt_logprobs is None:
            return None
        result = Sampled([])
        while row.params is not None:
            token = self.next_token(everything[: known + len(result.tokens)], adapter)
            result.tokens.append(token)
            guess = known + len(result.tokens) - 1
            if guess >= len(everything) or everything[guess] != token:
                break
        if row.params is not None and row.params.logprobs is not None:
            result.logprobs = [TokenLogprob(token, -1.0) for token in result.tokens]
        if row.prompt_logprobs is not None:
            end = min(row.start + len(row.tokens) + 1, len(row.prompt))
            result.prompt_logprobs = [
                TokenLogprob(row.prompt[position], self.score(row.prompt[: position + 1], adapter))
                for position in range(row.start + 1, end)
            ]
        return result

    @staticmethod
    def score(tokens: Sequence[int], adapter: str) -> float:
        return -float(zlib.crc32(repr((list(tokens), adapter, "score")).encode()))

    def _place(self, row: Row, position: int) -> int:
        return row.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def read_adapter(self, directory: Path) -> object:
        if (directory / "broken").exists():
            raise AdapterInvalid("broken on purpose", "broken")
        if len(directory.name) == 64 and directory.is_dir() and content_digest(directory) != directory.name:
            raise AdapterInvalid("not what the digest says", "file")
        return directory.name

    def adapter_bytes(self, adapter: object) -> int:
        return 1000

    def load_adapter(self, slot: int, adapter: object) -> None:
        assert isinstance(adapter, str)
        self.slots[slot] = adapter

    def clear_slot(self, slot: int) -> None:
        self.slots.pop(slot, None)


class CheckedLoop(Loop):
    """Looks whether anything leaked whenever nothing is left to do; a leak ends the core, and the test with it."""

    def _receive(self) -> bool:
        if not self.scheduler.live and not self._residency.has_work:
            self.scheduler.check_idle()
            self._host.check()
        return super()._receive()


def main() -> None:
    process.Loop = CheckedLoop  # type: ignore[misc]
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--vocab-size", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.002)
    parser.add_argument("--num-blocks", type=int, default=64)
    parser.add_argument("--num-slots", type=int, default=2)
    parser.add_argument("--max-waiting", type=int, default=64)
    parser.add_argument("--max-waiting-per-tenant", type=int, default=32)
    options = parser.parse_args()
    prepare()
    runner = FakeRunner(
        num_blocks=options.num_blocks,
        num_slots=options.num_slots,
        block_size=16,
        max_model_len=512,
        vocab_size=options.vocab_size,
        eos=None,
        step_seconds=options.step_seconds,
    )
    limits = Limits(
        max_model_len=512,
        max_running=8,
        token_budget=64,
        max_waiting=options.max_waiting,
        max_waiting_per_tenant=options.max_waiting_per_tenant,
    )
    serve(options.socket, runner, limits, base=options.base, store=options.store)


if __name__ == "__main__":
    main()
