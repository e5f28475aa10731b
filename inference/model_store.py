"""Registers a base model: one directory that a gateway and a worker can both trust by its fingerprint.

A store directory holds ``config.json``, ``tokenizer.json``, ``tokenizer_config.json``, ``generation_config.json``,
``chat_template.jinja`` (when the model has one), ``model*.safetensors``, ``manifest.json`` (size and sha256 of each of
these) and ``fingerprint`` (hex sha256 over the manifest's entries, each part length-prefixed). The directory's own name
is the name under which the model is served, and no part of the fingerprint.

Torch-free, so that the control plane can read a fingerprint::

    python -m inference.model_store SOURCE OUT
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from inference.errors import ConfigError, UnsupportedModel
from inference.model_config import ModelConfig

FORMAT = b"loraplex-model-store-1"
_WEIGHT_TYPES = {"F32", "F16", "BF16"}


def register(source: Path, out: Path) -> str:
    """Convert a GGUF file, or copy a Hugging Face directory of safetensors, into the store directory ``out``.

    Atomic: ``out`` appears complete or not at all. Registering the same content again is a no-op; other content under
    the same name is refused, because a served name never changes what it means. Weights on the same file system are
    hard-linked, not copied.

    :returns: the fingerprint.
    :raises UnsupportedModel: the architecture, quantisation or an option, by name.
    :raises ConfigError: a file is missing or damaged, or ``out`` holds another model.
    """
    if not source.exists():
        raise ConfigError(f"{source}: no such file or directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        if source.is_dir():
            _from_directory(source, staging)
        else:
            _from_gguf(source, staging)
        _check(staging)
        fingerprint = _seal(staging)
        if out.exists():
            if fingerprint_of(out) != fingerprint:
                raise ConfigError(f"{out}: already holds a model with another fingerprint; choose another name")
            return fingerprint
        staging.chmod(0o755)
        staging.rename(out)
        return fingerprint
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def fingerprint_of(directory: Path) -> str:
    """The fingerprint of a store directory, checked as far as is cheap.

    Sizes of all files and the content of all but the weights must agree with the manifest, and the manifest with the
    fingerprint. Milliseconds. Raises :class:`~inference.errors.ConfigError` naming the file; :func:`verify` reads the
    weights as well.
    """
    return _compare(directory, with_weights=False)


def verify(directory: Path) -> str:
    """:func:`fingerprint_of`, with every byte of the weights hashed again."""
    return _compare(directory, with_weights=True)


def _compare(directory: Path, *, with_weights: bool) -> str:
    try:
        stated = (directory / "fingerprint").read_text().strip()
        manifest = json.loads((directory / "manifest.json").read_text())
        entries = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{directory}: not a registered model ({error})") from error
    if _fingerprint(entries) != stated:
        raise ConfigError(f"{directory / 'manifest.json'}: does not match the fingerprint")
    for name, (size, digest) in entries.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != size:
            raise ConfigError(f"{path}: missing, or not the size that was registered")
        if (with_weights or not name.endswith(".safetensors")) and _sha256(path) != digest:
            raise ConfigError(f"{path}: changed since the model was registered")
    return stated


def _from_gguf(source: Path, out: Path) -> None:
    from safetensors.numpy import save_file

    from inference.gguf import GGUF_MAGIC, GgufFile

    with source.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise UnsupportedModel(f"{source}: neither a GGUF file nor a directory")
    model = GgufFile(source)
    _write_json(out / "config.json", model.config())
    _write_json(out / "generation_config.json", model.generation_config())
    _write_json(out / "tokenizer_config.json", model.tokenizer_config())
    (out / "tokenizer.json").write_text(model.tokenizer(), encoding="utf-8")
    if (template := model.chat_template()) is not None:
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    save_file(model.tensors(), out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors creates it readable by the owner alone


def _from_directory(source: Path, out: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        if not (source / name).is_file():
            raise ConfigError(f"{source / name}: missing")
    config = _read_json(source / "config.json")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    generation = source / "generation_config.json"
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id") if config.get(name) is not None}
    _write_json(out / "generation_config.json", _read_json(generation) if generation.is_file() else ids)
    if (template := _template(source)) is not None:
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    weights = sorted(source.glob("model*.safetensors"))
    if not weights:
        raise UnsupportedModel(f"{source}: no model*.safetensors; other weight formats are not supported")
    for path in weights:
        _link_or_copy(path.resolve(), out / path.name)


def _template(source: Path) -> str | None:
    path = source / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    settings = source / "tokenizer_config.json"
    template = _read_json(settings).get("chat_template") if settings.is_file() else None
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return cast("str | None", template)


def _check(directory: Path) -> None:
    """The tensors that the configuration promises are there, with its shapes, in a type the loader reads."""
    config = ModelConfig.from_json(_read_json(directory / "config.json"))
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("model*.safetensors")):
        found.update(_safetensors_header(path))
    for name, shape in config.tensor_shapes().items():
        if name not in found:
            raise ConfigError(f"tensor {name}: missing from the weights")
        if tuple(found[name]["shape"]) != shape:
            raise ConfigError(f"tensor {name}: shape {tuple(found[name]['shape'])}, config.json implies {shape}")
        if found[name]["dtype"] not in _WEIGHT_TYPES:
            raise UnsupportedModel(f"tensor {name}: dtype {found[name]['dtype']} is not supported")


def _safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ConfigError(f"{path.name}: not a complete safetensors file")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ConfigError(f"{path.name}: not a safetensors file") from error
    header.pop("__metadata__", None)
    if any(entry["data_offsets"][1] > size - 8 - length for entry in header.values()):
        raise ConfigError(f"{path.name}: truncated")
    return cast("dict[str, dict[str, Any]]", header)


def _seal(directory: Path) -> str:
    entries = {path.name: (path.stat().st_size, _sha256(path)) for path in sorted(directory.iterdir())}
    manifest = {name: {"size": size, "sha256": digest} for name, (size, digest) in entries.items()}
    _write_json(directory / "manifest.json", manifest)
    fingerprint = _fingerprint(entries)
    (directory / "fingerprint").write_text(fingerprint + "\n")
    return fingerprint


def _fingerprint(entries: dict[str, tuple[int, str]]) -> str:
    total = hashlib.sha256()
    parts = [FORMAT]
    for name, (size, digest) in sorted(entries.items()):
        parts += [name.encode(), str(size).encode(), digest.encode()]
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return data


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m inference.model_store",
        description="Register a base model: check it, and copy or convert it into a directory that workers serve. "
        "Prints its fingerprint.",
        epilog="example: python -m inference.model_store ~/downloads/Qwen2.5-0.5B-Instruct var/models/qwen2.5-0.5b",
    )
    parser.add_argument("source", type=Path, help="Hugging Face directory of safetensors, or a GGUF file")
    parser.add_argument("out", type=Path, help="directory to make; its name is what the model is called in requests")
    options = parser.parse_args(arguments)
    try:
        print(register(options.source, options.out))  # noqa: T201
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
