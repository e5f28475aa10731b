"""A worker process for the front's tests, and those who sign for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from inference.model_store import fingerprint_of
from inference.protocol import GRANT_ISSUER, OPERATOR_AUDIENCE, Grant

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Signer:
    """Signs grants as the gateway does."""

    base: str
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def public_pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def grant(self, **changes: Any) -> Grant:
        values: dict[str, Any] = {
            "request_id": str(uuid.uuid4()),
            "tenant": "t",
            "namespace": "ns-t",
            "base": self.base,
            "adapter": None,
            "max_input": 400,
            "max_output": 400,
            "priority": 0,
            "weight": 1,
            "expires_at": int(time.time()) + 60,
        }
        return Grant(**{**values, **changes})

    def token(self, **changes: Any) -> str:
        return self.sign(self.grant(**changes).claims())

    def sign(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, algorithm="EdDSA")

    def operator(self) -> str:
        return self.sign(
            {"iss": GRANT_ISSUER, "aud": OPERATOR_AUDIENCE, "sub": "operator", "exp": int(time.time()) + 60}
        )


class WorkerProcess:
    """A front with a fake core, in processes of their own."""

    def __init__(self, model: Path, folder: Path, signer: Signer, *options: str) -> None:
        self.signer = signer
        self.store = folder / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        key = folder / "grant.pem"
        key.write_bytes(signer.public_pem())
        path = os.pathsep.join([str(ROOT), str(ROOT / "platform"), str(ROOT / "kernels")])
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "fake_worker.py"), str(model), str(self.store), str(key),
             "--vocab-size", "49152", *options],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.core_pid = int(self.process.stdout.readline().removeprefix("core "))
        self.url = self.process.stdout.readline().removeprefix("ready ").strip()
        assert self.url.startswith("http://"), "the worker did not start"

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


class TinyWorker:
    """The real worker, core included, on a model that is quick; in a process of its own."""

    def __init__(self, model: Path, folder: Path, *options: str) -> None:
        self.signer = Signer(fingerprint_of(model))
        self.model = model.name
        key = folder / "grant.pem"
        key.write_bytes(self.signer.public_pem())
        (folder / "store").mkdir()
        path = os.pathsep.join([str(ROOT), str(ROOT / "platform"), str(ROOT / "kernels")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inference", "--model", str(model), "--adapter-store", str(folder / "store"),
             "--grant-key", str(key), "--host", "127.0.0.1", "--port", "0", *options],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("ready ")), "")
        self.url = line.removeprefix("ready ").split()[0] if line else ""
        assert self.url, "the worker did not start"

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
