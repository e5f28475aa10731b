"""One compiled loop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from numba import cfunc, config, types

_SIGNATURE = types.void(types.CPointer(types.int64))
_HERE = Path(__file__).parent


class Kernel:
    """Compiles ``body(arguments)``, where ``arguments`` points to int64s: addresses, sizes, a counter.

    The machine code is kept on disk beside Python's own compiled files (or in the user's cache directory) and is
    trusted as those are; where neither can be written, or the disk is full, each process compiles for itself, some
    seconds. It is used again while the source files of the body's folder, and those of this package, are what they
    were: what a body calls or takes a constant from has to be in one of the two.

    :param contract: let a product and a sum become one instruction. The order of sums stays as written.
    """

    def __init__(self, body: Callable[[Any], None], *, contract: bool = True) -> None:
        self._body = body
        # A body cannot raise: divided by 0, numbers are infinite as in numpy. An exception would end the loop half way.
        self._options: dict[str, Any] = {"error_model": "numpy"}
        if contract:
            self._options["fastmath"] = {"contract"}

    @cached_property
    def address(self) -> int:
        """What :func:`cpujit.threads.run` takes; compiled when first asked for."""
        compiled = self._kept() or cfunc(_SIGNATURE, **self._options)(self._body)
        self._compiled = compiled  # holds the code
        return int(compiled.address)

    def _kept(self) -> Any:
        """Compiled, or read from disk; ``None`` if nothing can be kept there."""
        try:
            with _kept_in(_directory(Path(self._body.__code__.co_filename).parent)):
                return cfunc(_SIGNATURE, cache=True, **self._options)(self._body)
        except OSError:  # a full disk, a quota, a limit on the size of files, a file of somebody else's
            return None
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            return None


def _directory(sources: Path) -> Path:
    """One for each edition of the sources: numba itself looks at no more than the file that the body is in."""
    digest = hashlib.sha256()
    for path in sorted({*_HERE.glob("*.py"), *sources.glob("*.py")}):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    root = sources / "__pycache__"
    if not os.access(root if root.exists() else sources, os.W_OK):
        root = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "loraplex"
    return root / f"cpujit-{digest.hexdigest()[:16]}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # a user without a name, as containers have them
        raise FileNotFoundError(str(error)) from error


@contextmanager
def _kept_in(directory: Path) -> Iterator[None]:
    before, config.CACHE_DIR = config.CACHE_DIR, str(directory)
    try:
        yield
    finally:
        config.CACHE_DIR = before
