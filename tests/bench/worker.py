"""The worker under load: keys made in the run, adapters in a content store, grants as the control plane signs them."""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import uuid6
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from exactness import compare
from load import Call, drive
from processes import Process, free_port
from workload import IN_FLIGHT, OUTPUT_TOKENS, adapter_name, encode, prompts

from inference.adapter_format import content_digest, store_path
from inference.model_store import fingerprint_of
from inference.protocol import GRANT_ALGORITHM, Grant


@dataclass(frozen=True, slots=True)
class GrantSigner:
    """Signs what the gateway would sign, with a key pair that exists only in this run's folder."""

    private_pem: bytes
    public_file: Path

    @classmethod
    def make(cls, folder: Path) -> GrantSigner:
        key = Ed25519PrivateKey.generate()
        public_file = folder / "grant-public.pem"
        public_file.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        private_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(private_pem, public_file)

    def sign(self, base: str, adapter: str | None, tenant: str = "bench") -> str:
        grant = Grant(
            request_id=str(uuid.UUID(str(uuid6.uuid7()))),
            tenant=tenant,
            namespace=tenant,
            base=base,
            adapter=adapter,
            max_input=4096,
            max_output=4096,
            priority=0,
            weight=1,
            expires_at=int(time.time()) + 120,
        )
        return jwt.encode(grant.claims(), self.private_pem, algorithm=GRANT_ALGORITHM)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker needs to be started, and to be spoken to."""

    model_dir: Path
    store: Path
    signer: GrantSigner
    digests: dict[str, str]
    fingerprint: str

    @classmethod
    def make(cls, model_dir: Path, adapters: Path, folder: Path) -> Setup:
        store = folder / "store"
        store.mkdir()
        digests = {}
        for directory in sorted(adapters.iterdir()) if adapters.is_dir() else ():
            digest = content_digest(directory)
            target = store_path(store, digest)
            target.mkdir(parents=True)
            for name in ("adapter_config.json", "adapter_model.safetensors"):
                shutil.copy(directory / name, target / name)
            digests[directory.name] = digest
        return cls(model_dir, store, GrantSigner.make(folder), digests, fingerprint_of(model_dir))

    def process(self, folder: Path, threads: int, *options: str) -> Process:
        argv = [sys.executable, "-m", "inference", "--model", str(self.model_dir), "--adapter-store", str(self.store)]
        argv += ["--grant-key", str(self.signer.public_file), "--host", "127.0.0.1", "--port", str(free_port())]
        argv += ["--slots", "8", "--threads", str(threads), *options]
        return Process(argv, folder / "worker.log")

    def call(self, prompt: list[int], adapter: str | None, tokens: int, tenant: str = "bench") -> Call:
        digest = self.digests[adapter] if adapter else None
        body = {
            "model": digest or self.model_dir.name,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        return Call(body, lambda: self.signer.sign(self.fingerprint, digest, tenant))

    def round(self, number: int, waves: int, mixed: bool) -> list[Call]:
        """``waves`` × 16 calls with prompts that no earlier round had."""
        calls = []
        for wave in range(waves):
            texts = prompts(self.model_dir, round_number=1000 + 100 * number + wave)
            for row, ids in enumerate(encode(self.model_dir, texts)):
                calls.append(self.call(ids, adapter_name(row) if mixed else None, OUTPUT_TOKENS))
        assert len(calls) == waves * IN_FLIGHT
        return calls


async def check_worker(url: str, setup: Setup, expected: list[dict[str, Any]]) -> str:
    """All of the reference's rows in flight at once; says how many tokens were equal, or ends the run."""
    calls = [setup.call(row["prompt"], row["adapter"], len(row["tokens"])) for row in expected]
    load = await drive(url, calls, in_flight=len(calls))
    compared, ties = compare(expected, [answer.token_ids for answer in load.answers])
    return f"exact: {compared} tokens equal, {ties} rows cut short by a near-tie"
