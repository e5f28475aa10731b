"""What the end of a rehearsal process says about the grammar it was given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.constraints import checker as module
from inference.constraints.checker import TOO_COMPLEX, Checker
from inference.constraints.rehearsal import UNFIT_STATUS
from inference.constraints.vocabulary import Vocabulary
from inference.errors import Overloaded

PROCESS = """
import json, os, signal, sys, time
from pathlib import Path

directory = Path(sys.argv[1])
with (directory / "starts").open("a") as starts:
    starts.write("x")
if (directory / "late").exists():
    time.sleep(3)
if (directory / "dead").exists():
    os.kill(os.getpid(), signal.SIGSEGV)

def say(body):
    os.write(1, len(body).to_bytes(4, "little") + body)

say(b"{}")
while header := sys.stdin.buffer.read(4):
    grammar = json.loads(sys.stdin.buffer.read(int.from_bytes(header, "little")))["grammar"]
    how, _, times = grammar.partition(" ")
    with (directory / how).open("a") as seen:
        seen.write("x")
    if times and len((directory / how).read_text()) > int(times):
        how = "fine"
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how.startswith("status"):
        os._exit(int(how.removeprefix("status")))
    elif how == "sleep":
        time.sleep(60)
    elif how == "garbage":
        say(b"?")
    else:
        say(json.dumps({"error": None if how == "fine" else how}).encode())
"""
"""Does what its grammar says, as often as that says: ``SIGKILL 1`` ends one process and is fine in the next."""


class House:
    def __init__(self, directory: Path, vocabulary: Vocabulary) -> None:
        self.directory = directory
        self.checker = Checker(directory, vocabulary)
        self.checker._command = [sys.executable, "-c", PROCESS, str(directory)]

    @property
    def starts(self) -> int:
        return len((self.directory / "starts").read_text())


@pytest.fixture
def house(tmp_path: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(module, "WALL_SECONDS", 2.0)
    monkeypatch.setattr(module, "ENDING_SECONDS", 1.0)
    house = House(tmp_path, vocabulary)
    yield house
    house.checker.close()


@pytest.mark.parametrize("end", ["SIGXCPU", "SIGSEGV", "SIGABRT", f"status{UNFIT_STATUS}", "sleep"])
def test_a_grammar_that_brings_the_process_to_a_limit_is_refused_at_once(house: House, end: str) -> None:
    assert house.checker.check("fine") is None
    assert house.checker.check(end) == TOO_COMPLEX
    assert house.starts == 1
    assert house.checker.check("wrong") == "wrong"
    assert house.starts == 2


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "status0", "status1", "garbage"])
def test_any_other_end_is_not_the_grammars(house: House, end: str) -> None:
    assert house.checker.check(f"{end} 1") is None, "fine in the next process"
    assert house.starts == 2
    with pytest.raises(Overloaded) as raised:
        house.checker.check(end)
    assert raised.value.retry_after > 0
    assert house.starts == 3
    assert house.checker.check("fine") is None


def test_a_process_that_ended_between_two_grammars_counts_for_nothing(house: House) -> None:
    assert house.checker.check("fine") is None
    process = house.checker._process
    assert process is not None
    process.kill()
    process.wait()
    assert house.checker.check("SIGKILL 1") is None
    assert house.starts == 3


def test_the_start_of_the_process_is_not_the_grammars_time(house: House) -> None:
    (house.directory / "late").touch()
    assert house.checker.check("fine") is None


@pytest.mark.parametrize("how", ["dies", "hangs", "is not there"])
def test_a_process_that_does_not_start_is_not_the_grammars_fault(
    house: House, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = house.checker._command
    if how == "is not there":
        house.checker._command = [str(house.directory / "missing")]
    (house.directory / ("dead" if how == "dies" else "late")).touch()
    with monkeypatch.context() as patched:
        patched.setattr(module, "START_SECONDS", 1.0)
        with pytest.raises(Overloaded):
            house.checker.check("fine")
    (house.directory / ("dead" if how == "dies" else "late")).unlink()
    house.checker._command = command
    assert house.checker.check("fine") is None
