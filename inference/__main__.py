"""``python -m inference``: one worker, as a front process with its core as a child."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Sequence

from inference.config import BLOCK_SIZE, WorkerConfig
from inference.errors import ConfigError, InferenceError
from inference.front.core_link import CoreLink
from inference.front.metrics import FrontMetrics
from inference.front.server import address, bind, serve
from inference.front.service import Service
from inference.grants import GrantVerifier
from inference.model_store import fingerprint_of
from inference.prompt import PromptRenderer


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
    verifier = GrantVerifier.load(config.grant_key, base=fingerprint)
    link = await CoreLink.start(core_command(config, max_model_len(config, renderer)))
    service = Service(
        link=link,
        verifier=verifier,
        renderer=renderer,
        metrics=FrontMetrics(link, config.served_name),
        served_name=config.served_name,
        adapter_store=config.adapter_store,
        adapter_roots=config.adapter_roots,
        max_body_bytes=config.max_body_bytes,
        health_deadline=config.health_deadline,
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


def max_model_len(config: WorkerConfig, renderer: PromptRenderer) -> int:
    """The most tokens of one request: what is asked for, the model's context, and the whole cache bound it."""
    held = config.kv_blocks * BLOCK_SIZE
    if config.max_model_len is None:
        return min(renderer.context_length, held)
    if config.max_model_len > renderer.context_length:
        raise ConfigError(f"--max-model-len exceeds the model's context of {renderer.context_length} tokens")
    if config.max_model_len > held:
        raise ConfigError(f"--max-model-len exceeds the KV cache of {held} tokens; raise --kv-blocks")
    return config.max_model_len


def core_command(config: WorkerConfig, max_len: int) -> list[str]:
    """How the core is started; the socket is added by the link."""
    shares = config.shares(max_len)
    options = {
        "--model": config.model,
        "--adapter-store": config.adapter_store,
        "--num-blocks": config.kv_blocks,
        "--num-slots": config.slots,
        "--max-model-len": max_len,
        "--threads": config.threads,
        "--dtype": config.dtype,
        "--max-running": config.max_running,
        "--token-budget": config.token_budget,
        "--max-waiting": config.max_waiting,
        "--max-waiting-per-tenant": config.max_waiting_per_tenant,
        "--reserved-blocks": shares.reserved,
        "--cap-blocks": shares.cap,
        "--idle-seconds": shares.idle_seconds,
    }
    return [
        sys.executable,
        "-m",
        "inference.core.process",
        *(text for option, value in options.items() for text in (option, str(value))),
    ]


if __name__ == "__main__":
    sys.exit(main())
