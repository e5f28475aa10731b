"""``python -m inference``: one worker, as a front process with its core as a child."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Sequence

from inference.config import WorkerConfig
from inference.errors import InferenceError
from inference.front.core_link import CoreLink
from inference.front.metrics import FrontMetrics
from inference.front.server import address, bind, serve
from inference.front.service import Service
from inference.grants import GrantVerifier
from inference.model_config import ModelConfig
from inference.model_store import fingerprint_of
from inference.parallel.shard import Shard
from inference.prompt import PromptRenderer
from inference.versions import EngineVersion, engine_version


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 after a drain, 1 for a start that failed or a core that died."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s front %(levelname)s %(message)s", stream=sys.stderr)
    try:
        config = WorkerConfig.parse(sys.argv[1:] if arguments is None else arguments)
        listener = bind(config.host, config.port)
        return asyncio.run(_run(config, listener))
    except InferenceError as error:
        print(f"The worker cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:  # before the signal handlers stand
        return 130


async def _run(config: WorkerConfig, listener: socket.socket) -> int:
    renderer = PromptRenderer.load(config.model)
    fingerprint = fingerprint_of(config.model)
    # a model that the core would refuse is named here, in one line
    Shard(size=config.tensor_parallel).config(ModelConfig.load(config.model))
    verifier = GrantVerifier.load(config.grant_key, base=fingerprint)
    config = config.resolved(renderer.context_length)
    if config.kv_blocks is not None:
        config.limits()  # what cannot work is said before the model is loaded
    link = await CoreLink.start(core_command(config))
    # Answers depend on the type, which only the core knows where the options leave it open.
    version = EngineVersion(fingerprint, link.ready.kv_dtype, engine_version())
    service = Service(
        link=link,
        verifier=verifier,
        renderer=renderer,
        metrics=FrontMetrics(link, config.served_name, version),
        version=version,
        served_name=config.served_name,
        adapter_store=config.adapter_store,
        adapter_roots=config.adapter_root,
        max_body_bytes=config.max_body_bytes,
        health_deadline=config.health_deadline,
        open_metrics=config.open_metrics,
    )
    try:
        return await serve(
            service,
            listener,
            drain_seconds=config.drain_seconds,
            ready=lambda: _say_ready(config, address(listener), fingerprint),
        )
    finally:
        await link.close()


def _say_ready(config: WorkerConfig, url: str, fingerprint: str) -> None:
    facts = {"event": "ready", "url": url, "model": config.served_name, "fingerprint": fingerprint}
    print(json.dumps(facts) if config.json else f"ready {url}", flush=True)  # noqa: T201


def core_command(config: WorkerConfig) -> list[str]:
    """How the core is started; the socket is added by the link."""
    return [sys.executable, "-m", "inference.core.process", "--config", config.to_json()]


if __name__ == "__main__":
    sys.exit(main())
