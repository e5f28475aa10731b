"""The files that a batch leaves: its answers, and what failed or never ran."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gateway.batches.line_run import expired_line
from gateway.batches.lines import custom_id_of, read
from tenants import files
from tenants.batch_work import done_lines
from tenants.models import Batch, BatchResult


def answers(batch: Batch) -> Path | None:
    """Where they lie now; ``None``: there is none."""
    return _write(_results(batch, answered=True))


def failures(batch: Batch, source: Path | None) -> tuple[Path | None, int]:
    """As :func:`answers`, and how many lines of ``source`` never ran: they follow as expired."""
    missing = 0

    def lines() -> Iterator[bytes]:
        nonlocal missing
        yield from _results(batch, answered=False)
        if source is None:
            return
        done = done_lines(batch)
        with closing(read(source)) as texts:
            for number, text in texts:
                if number not in done:
                    missing += 1
                    yield expired_line(custom_id_of(number, text))

    path = _write(lines())
    return path, missing


def _results(batch: Batch, *, answered: bool) -> Iterator[bytes]:
    found = BatchResult.objects.filter(batch__tenant=batch.tenant, batch=batch, answered=answered).order_by("line")
    for body in found.values_list("body", flat=True).iterator(chunk_size=50):  # answers have megabytes at worst
        yield bytes(body)


def _write(lines: Iterator[bytes]) -> Path | None:
    first = next(lines, None)
    if first is None:
        return None
    path = files.incoming()
    with path.open("xb") as file:
        file.write(first + b"\n")
        for line in lines:
            file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return path
