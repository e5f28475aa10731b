"""Secrets that an installation makes for itself, once: files of mode 0600 in ``DATA_DIR/keys``.

Several processes may start at the same moment; a file appears whole or not at all, and the first writer wins.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gateway.config.errors import SettingError


def folder(data_dir: Path) -> Path:
    """``data_dir/keys``, made if absent. Raises :class:`SettingError` when it cannot be made or written."""
    keys = data_dir / "keys"
    try:
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"LORAPLEX_DATA_DIR {data_dir} cannot be written ({error.strerror}).") from None
    return keys


def django_key(keys: Path) -> str:
    return _once(keys / "django.key", lambda: secrets.token_urlsafe(48).encode()).decode()


def peppers_text(keys: Path) -> str:
    """In the form of LORAPLEX_KEY_PEPPERS."""
    return _once(keys / "peppers", _new_peppers).decode()


def grant_pair(keys: Path) -> tuple[Path, Path]:
    """Paths of the private and the public key (PEM). The public half is derived again when it is missing."""
    private, public = keys / "grant.pem", keys / "grant.pub.pem"
    pem = _once(private, _new_private_pem)
    _once(public, lambda: _public_pem(pem, private), mode=0o644)
    return private, public


def given_pair(private: Path | None, public: Path | None) -> tuple[Path, Path] | None:
    """The operator's own pair, or ``None`` when neither is given. One without the other is a mistake."""
    pair = {"LORAPLEX_GRANT_PRIVATE_KEY_FILE": private, "LORAPLEX_GRANT_PUBLIC_KEY_FILE": public}
    if private is None and public is None:
        return None
    for name, path in pair.items():
        if path is None:
            raise SettingError(f"{name} must be set when the other half of the pair is.")
        if not os.access(path, os.R_OK):
            raise SettingError(f"{name} must name a file that can be read, not {path}.")
    assert private is not None
    assert public is not None
    return private, public


def _new_peppers() -> bytes:
    return f"1:{secrets.token_hex(32)}".encode()


def _new_private_pem() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _public_pem(private_pem: bytes, origin: Path) -> bytes:
    try:
        key = load_pem_private_key(private_pem, password=None)
    except ValueError:
        raise SettingError(f"LORAPLEX_GRANT_PRIVATE_KEY_FILE {origin} is not a PEM private key.") from None
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _once(path: Path, make: Callable[[], bytes], mode: int = 0o600) -> bytes:
    try:
        if not path.exists():
            _publish(path, make(), mode)
        return path.read_bytes().strip()
    except OSError as error:
        raise SettingError(
            f"LORAPLEX_DATA_DIR {path.parent.parent}: {path} cannot be read or written ({error.strerror})."
        ) from None


def _publish(path: Path, content: bytes, mode: int) -> None:
    """Write beside ``path``, then link: a reader sees all of it, and a second writer's link fails."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first; its content counts
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
