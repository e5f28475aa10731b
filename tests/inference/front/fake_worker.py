"""A real front over a fake core, as one process: ``fake_worker.py MODEL STORE PUBLIC_KEY [options …]``.

Options are the core's, but for ``--quiet-seconds``: after how much silence a stream says that it waits.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from inference.front import event_stream
from inference.front import service as service_module
from inference.front.core_link import CoreLink
from inference.front.http_protocol import BoundedProtocol
from inference.front.metrics import FrontMetrics
from inference.front.server import address, bind, serve
from inference.front.service import Service
from inference.grants import GrantVerifier
from inference.model_store import fingerprint_of
from inference.prompt import PromptRenderer
from inference.versions import EngineVersion, engine_version

BoundedProtocol.head_seconds = 1.0
service_module.BODY_SECONDS = 2.0
FAKE_CORE = Path(__file__).parent.parent / "core" / "fake_runner.py"


def configured(options: list[str]) -> list[str]:
    """Takes in those for the front; the core's are left."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quiet-seconds", type=float, default=event_stream.QUIET_SECONDS)
    front, core = parser.parse_known_args(options)
    event_stream.QUIET_SECONDS = front.quiet_seconds
    return core


async def main(model: Path, store: Path, key: Path, options: list[str]) -> int:
    listener = bind("127.0.0.1", 0)
    base = fingerprint_of(model)
    link = await CoreLink.start([sys.executable, str(FAKE_CORE), "--store", str(store), "--base", base, *options])
    print(f"core {link._process.pid if link._process else 0}", flush=True)
    version = EngineVersion(base, "fake", engine_version())
    service = Service(
        link=link,
        verifier=GrantVerifier.load(key, base=base),
        renderer=PromptRenderer.load(model),
        metrics=FrontMetrics(link, "fake", version),
        version=version,
        served_name="fake",
        adapter_store=store,
        adapter_roots=(),
        max_body_bytes=100_000,
        health_deadline=2.0,
    )
    try:
        return await serve(
            service, listener, drain_seconds=2.0, ready=lambda: print(f"ready {address(listener)}", flush=True)
        )
    finally:
        await link.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), configured(sys.argv[4:]))))
