"""``/metrics``: vLLM's names and types, true numbers, and no names for strangers."""

from __future__ import annotations

import asyncio
import json
import shutil
import time

import aiohttp
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from inference.adapter_format import content_digest, store_path
from inference.client import WorkerClient
from inference.errors import AdapterInvalid, GrantRefused
from tests.inference.front.actors import Signer, WorkerProcess
from tests.inference.server.conftest import Start

HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_max_tokens",
)
GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
)
COUNTERS = (
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:request_success",
    "loraplex:adapter_load_failures",
    "loraplex:adapter_evictions",
)
SECRETS = ("loraplex:tenant_", "vllm:lora_requests_info", "loraplex:adapter_resident{")


async def families(
    worker: WorkerProcess, session: aiohttp.ClientSession, token: str | None = None
) -> dict[str, Metric]:
    text = await WorkerClient(worker.url, session).metrics_text(token)
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], name: str, suffix: str = "", **labels: str) -> float:
    for sample in found[name].samples:
        if sample.name == name + suffix and labels.items() <= sample.labels.items():
            return sample.value
    raise AssertionError(f"no {name}{suffix} with {labels}")


async def generate(worker: WorkerProcess, session: aiohttp.ClientSession, count: int, **grant: str) -> None:
    body = {"model": grant.get("adapter") or "fake", "prompt": [5, 6, 7], "max_tokens": count}
    async for _ in WorkerClient(worker.url, session).generate(body, worker.signer.token(**grant)):
        pass


async def until(worker: WorkerProcess, session: aiohttp.ClientSession, name: str, expected: float) -> None:
    deadline = time.monotonic() + 5
    while value(await families(worker, session), name) != expected:
        assert time.monotonic() < deadline, f"{name} did not come to {expected}"
        await asyncio.sleep(0.05)


async def test_names_and_types_are_vllms(start: Start, session: aiohttp.ClientSession) -> None:
    found = await families(start(), session)
    for names, kind in ((HISTOGRAMS, "histogram"), (GAUGES, "gauge"), (COUNTERS, "counter")):
        for name in names:
            assert found[name].type == kind, name
    reasons = {sample.labels["finished_reason"] for sample in found["vllm:request_success"].samples}
    assert {"stop", "length", "abort", "error"} <= reasons
    assert found["loraplex:adapter_load_seconds"].type == "histogram"
    assert found["loraplex:build_info"].samples[0].labels["weights"] == "fake"


async def test_one_request_is_counted_once_everywhere(start: Start, session: aiohttp.ClientSession) -> None:
    worker = start("--step-seconds", "0.1")  # so that two tokens never come at once
    await generate(worker, session, 10, tenant="one")
    found = await families(worker, session)
    for name in HISTOGRAMS:
        assert value(found, name, "_count") == (9 if name == "vllm:inter_token_latency_seconds" else 1), name
    assert value(found, "vllm:prompt_tokens", "_total") == 3
    assert value(found, "vllm:generation_tokens", "_total") == 10
    assert value(found, "vllm:request_prompt_tokens", "_sum") == 3
    assert value(found, "vllm:request_generation_tokens", "_sum") == 10
    assert value(found, "vllm:request_params_max_tokens", "_sum") == 10
    assert value(found, "vllm:request_success", "_total", finished_reason="length") == 1
    whole = value(found, "vllm:e2e_request_latency_seconds", "_sum")
    first = value(found, "vllm:time_to_first_token_seconds", "_sum")
    decode = value(found, "vllm:request_decode_time_seconds", "_sum")
    assert 9 * 0.02 <= decode <= whole
    assert first + decode == pytest.approx(whole, abs=0.05)
    parts = [value(found, f"vllm:request_{part}_time_seconds", "_sum") for part in ("queue", "prefill")]
    assert sum(parts) == pytest.approx(first, abs=1e-6)
    assert value(found, "vllm:inter_token_latency_seconds", "_sum") == pytest.approx(decode, abs=1e-6)


async def test_time_in_the_queue_is_told_from_computing(start: Start, session: aiohttp.ClientSession) -> None:
    worker = start("--step-seconds", "0.02")  # eight run at once
    await asyncio.gather(*(generate(worker, session, 20) for _ in range(9)))
    found = await families(worker, session)
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in found["vllm:request_queue_time_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert buckets[0.3] == 8
    assert buckets[1] == 9


async def test_aborts_and_failures_have_their_reason(start: Start, session: aiohttp.ClientSession) -> None:
    worker = start("--step-seconds", "0.02")
    stream = WorkerClient(worker.url, session).generate({"model": "fake", "prompt": [1]}, worker.signer.token())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await until(worker, session, "vllm:num_requests_running", 0)
    folder = worker.store / "source"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    digest = content_digest(folder)
    shutil.copytree(folder, store_path(worker.store, digest))
    await generate(worker, session, 1, adapter=digest)
    (folder / "adapter_model.safetensors").write_bytes(b"y")
    other = content_digest(folder)
    shutil.copytree(folder, store_path(worker.store, other))
    (store_path(worker.store, other) / "broken").touch()
    with pytest.raises(AdapterInvalid):
        await generate(worker, session, 1, adapter=other)
    found = await families(worker, session)
    for reason, count in (("abort", 1), ("length", 1), ("error", 1), ("stop", 0)):
        assert value(found, "vllm:request_success", "_total", finished_reason=reason) == count, reason
    assert value(found, "loraplex:adapter_load_seconds", "_count") == 1
    assert 0 < value(found, "loraplex:adapter_load_seconds", "_sum") < 5
    assert value(found, "loraplex:adapter_load_seconds", "_bucket", le="5.0") == 1
    assert value(found, "loraplex:adapter_load_failures", "_total") == 1
    assert value(found, "loraplex:adapters_resident") == 1


async def test_names_are_for_operators(start: Start, session: aiohttp.ClientSession) -> None:
    worker = start()
    await generate(worker, session, 3, tenant="initech")
    client = WorkerClient(worker.url, session)
    text = await client.metrics_text()
    assert "initech" not in text
    assert not any(secret in text for secret in SECRETS)
    text = await client.metrics_text(worker.signer.operator())
    assert all(secret in text for secret in SECRETS[:2])
    assert 'loraplex:tenant_generation_tokens_total{tenant="initech"} 3.0' in text
    assert 'loraplex:tenant_time_to_first_token_seconds_count{tenant="initech"} 1.0' in text
    for token in (worker.signer.token(), Signer(worker.signer.base).operator(), "x"):
        with pytest.raises(GrantRefused):
            await client.metrics_text(token)


async def test_answers_say_what_computed_them(start: Start, session: aiohttp.ClientSession) -> None:
    worker = start()
    base = worker.signer.base[:12]
    body = {"model": "fake", "prompt": [1, 2], "max_tokens": 2}
    for stream in (False, True):
        headers = {"Authorization": f"Bearer {worker.signer.token()}"}
        async with session.post(
            f"{worker.url}/v1/completions", json={**body, "stream": stream}, headers=headers
        ) as response:
            assert response.headers["Server"].startswith("loraplex/")
            version = response.headers["Server"].removeprefix("loraplex/")
            lines = (await response.text()).split("\n\n")
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
        assert {event["system_fingerprint"] for event in events} == {f"loraplex-{version}-fake-{base}"}
    async with session.get(f"{worker.url}/health") as response:
        answer = await response.json()
        assert (answer["version"], answer["weights"]) == (version, "fake")
