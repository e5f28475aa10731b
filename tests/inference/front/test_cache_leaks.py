"""Cache leaks that need a front: names, salts and figures. The core behind it has a fake device and the real cache."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from inference.adapter_format import content_digest, store_path
from inference.front.tenant_metrics import TenantMetrics
from inference.model_store import fingerprint_of
from inference.prompt import PromptRenderer
from tests.inference.front.actors import Signer, WorkerProcess

PROMPT = list(range(100, 150))
CACHED = 48


@pytest.fixture(scope="module")
def worker(smollm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    signer = Signer(fingerprint_of(smollm_dir))
    process = WorkerProcess(smollm_dir, tmp_path_factory.mktemp("leaks"), signer, "--num-blocks", "512")
    yield process
    assert process.stop() == 0


class Asker:
    """One prompt under many names."""

    def __init__(self, worker: WorkerProcess, session: aiohttp.ClientSession) -> None:
        self.worker, self.session = worker, session

    async def post(self, path: str, body: Any, token: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(f"{self.worker.url}{path}", data=json.dumps(body), headers=headers) as response:
            return response.status, await response.text()

    async def cached(self, namespace: str, adapter: str | None = None, **values: Any) -> int:
        """Cached tokens as the client sees them."""
        grant = {"namespace": namespace, "adapter": adapter, "tenant": values.pop("tenant", namespace)}
        body = {"model": adapter or "fake", "prompt": PROMPT, "max_tokens": 1, **values}
        status, text = await self.post("/v1/completions", body, self.worker.signer.token(**grant))
        assert status == 200, text
        count = json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(count, int)
        return count

    async def metric(self, name: str, tenant: str) -> float | None:
        operator = {"Authorization": f"Bearer {self.worker.signer.operator()}"}
        async with self.session.get(f"{self.worker.url}/metrics", headers=operator) as response:
            lines = (await response.text()).splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f'{name}{{tenant="{tenant}"}}')]
        return float(values[0]) if values else None


@pytest.fixture
async def ask(worker: WorkerProcess) -> AsyncIterator[Asker]:
    async with aiohttp.ClientSession() as session:
        yield Asker(worker, session)


def adapter(worker: WorkerProcess, folder: Path, content: str) -> str:
    """In the content store; the fake core asks no more of it than to be there."""
    source = folder / content
    source.mkdir()
    (source / "adapter_config.json").write_text("{}")
    (source / "adapter_model.safetensors").write_bytes(content.encode())
    digest = content_digest(source)
    shutil.copytree(source, store_path(worker.store, digest), dirs_exist_ok=True)
    return digest


def fresh() -> str:
    return uuid.uuid4().hex


async def test_reloading_a_name_serves_no_stale_cache(ask: Asker, worker: WorkerProcess, tmp_path: Path) -> None:
    old, new = adapter(worker, tmp_path, "old"), adapter(worker, tmp_path, "new")
    namespace, operator = fresh(), worker.signer.operator()

    async def load(content: str) -> None:
        directory = worker.store / "by-hand" / content  # outside the content-addressed part: any name will do
        shutil.copytree(tmp_path / content, directory)
        body = {"lora_name": "mine", "lora_path": str(directory)}
        status, text = await ask.post("/v1/load_lora_adapter", body, operator)
        assert status == 200, text

    await load("old")
    assert await ask.cached(namespace, old, model="mine") == 0
    assert await ask.cached(namespace, old, model="mine") == CACHED
    assert (await ask.post("/v1/unload_lora_adapter", {"lora_name": "mine"}, operator))[0] == 200
    await load("new")
    assert await ask.cached(namespace, new, model="mine") == 0
    assert await ask.cached(namespace, new, model="mine") == CACHED
    status, _ = await ask.post(
        "/v1/completions",
        {"model": "mine", "prompt": PROMPT, "max_tokens": 1},
        worker.signer.token(namespace=namespace, adapter=old),
    )
    assert status == 403, "the old grant got the new adapter under the old name"


async def test_a_namespace_may_be_called_like_an_adapter(ask: Asker, worker: WorkerProcess, tmp_path: Path) -> None:
    digest, namespace = adapter(worker, tmp_path, "salt"), fresh()
    assert await ask.cached(namespace, digest) == 0
    assert await ask.cached(digest) == 0
    assert await ask.cached(digest, digest) == 0
    assert await ask.cached(namespace, digest) == CACHED


async def test_a_clients_salt_chooses_nothing(ask: Asker, worker: WorkerProcess) -> None:
    mine, theirs = fresh(), fresh()
    assert await ask.cached(theirs) == 0
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 1, "cache_salt": theirs}
    status, _ = await ask.post("/v1/completions", body, worker.signer.token(namespace=mine))
    assert status == 403
    assert await ask.cached(mine, cache_salt=mine) == 0, "the refused request was computed"
    assert await ask.cached(mine) == CACHED
    assert await ask.cached(theirs, cache_salt=theirs) == CACHED


@pytest.mark.parametrize(
    "salt",
    ["", "\0", "x" * 50_000, "\ud800", 7, 1.5, True, [], ["a"], {}, {"a": "b"}],
    ids=lambda salt: repr(salt)[:12],
)
async def test_a_malformed_salt_is_refused_and_harms_nobody(ask: Asker, worker: WorkerProcess, salt: Any) -> None:
    namespace = fresh()
    assert await ask.cached(namespace) == 0
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 1, "cache_salt": salt}
    status, text = await ask.post("/v1/completions", body, worker.signer.token(namespace=namespace))
    assert status in (400, 403)
    assert json.loads(text)["error"]["message"]
    assert await ask.cached(namespace) == CACHED
    assert await ask.cached(fresh()) == 0


async def test_an_absent_salt_is_the_grants_namespace(ask: Asker) -> None:
    namespace = fresh()
    assert await ask.cached(namespace, cache_salt=None) == 0
    assert await ask.cached(namespace, cache_salt=namespace) == CACHED
    assert await ask.cached(fresh(), cache_salt=None) == 0


async def test_one_tenant_with_two_namespaces_has_two_caches(ask: Asker) -> None:
    one, two, tenant = fresh(), fresh(), fresh()
    assert await ask.cached(one, tenant=tenant) == 0
    assert await ask.cached(two, tenant=tenant) == 0
    assert await ask.cached(one, tenant=tenant) == CACHED


async def test_figures_are_the_tenants_own(ask: Asker) -> None:
    mine, theirs = fresh(), fresh()
    await ask.cached(theirs)
    for _ in range(3):
        await ask.cached(mine)
    prompt, hits = "loraplex:tenant_prompt_tokens_total", "loraplex:tenant_cached_prompt_tokens_total"
    assert (await ask.metric(prompt, mine), await ask.metric(hits, mine)) == (150, 2 * CACHED)
    assert (await ask.metric(prompt, theirs), await ask.metric(hits, theirs)) == (50, 0)
    assert await ask.metric("loraplex:tenant_generation_tokens_total", mine) == 3


def count(metrics: TenantMetrics, tenant: str) -> None:
    metrics.began(tenant, 10, 4, seconds=0.5, queued=0.25)
    metrics.gained(tenant, 1)
    metrics.ended(tenant)


def test_the_number_of_series_is_bounded_and_no_token_is_lost() -> None:
    metrics = TenantMetrics(named=3)
    for _ in range(2):
        for number in range(10):
            count(metrics, f"t{number}")
    count(metrics, "other")  # a tenant of that name is just another
    requests, prompt, cached, generated, first, queued = metrics.collect()
    values = {sample.labels["tenant"]: sample.value for sample in prompt.samples}
    assert values == {"t0": 20, "t1": 20, "t2": 20, "other": 150}
    assert {sample.value for sample in cached.samples} == {8, 60}
    assert {sample.value for sample in generated.samples} == {2, 15}
    assert {sample.value for sample in requests.samples} == {2, 15}
    assert {sample.value for sample in first.samples if sample.name.endswith("_sum")} == {1.0, 7.5}
    assert {sample.value for sample in queued.samples if sample.name.endswith("_sum")} == {0.5, 3.75}


async def test_a_public_prefix_is_the_operators_to_declare(worker: WorkerProcess, ask: Asker) -> None:
    operator, tenant = worker.signer.operator(), worker.signer.token()
    tokens = list(range(300, 340))

    async def cached(namespace: str) -> int:
        return await ask.cached(namespace, prompt=[*tokens, 7, 8, 9])

    assert (await ask.post("/v1/public_prefixes", {"tokens": tokens}, tenant))[0] == 401
    assert [await cached("p1"), await cached("p2")] == [0, 0]
    status, text = await ask.post("/v1/public_prefixes", {"tokens": tokens}, operator)
    assert status == 200, text
    declared = json.loads(text)
    assert (declared["tokens"], declared["shared_tokens"], declared["model"]) == (40, 32, "fake")
    assert [await cached("p3"), await cached("p4")] == [0, 32]
    for body, param in (
        ({"tokens": tokens[:3]}, "prompt"),
        ({"tokens": tokens, "model": "nothing"}, "model"),
        ({"tokens": [10**6] * 20}, "tokens"),
        ({"tokens": tokens, "namespace": "p1"}, "namespace"),
        ({}, "prompt"),
    ):
        status, text = await ask.post("/v1/public_prefixes", body, operator)
        assert (status, json.loads(text)["error"]["param"]) == (400, param)
    headers = {"Authorization": f"Bearer {operator}"}
    url = f"{worker.url}/v1/public_prefixes"
    async with ask.session.get(url, headers=headers) as response:
        assert [entry["id"] for entry in (await response.json())["data"]] == [declared["id"]]
    async with ask.session.delete(f"{url}/{declared['id']}") as response:
        assert response.status == 401
    async with ask.session.delete(f"{url}/{declared['id']}", headers=headers) as response:
        assert response.status == 200
    async with ask.session.delete(f"{url}/{declared['id']}", headers=headers) as response:
        assert response.status == 404
    assert [await cached("p5"), await cached("p4")] == [0, 0]


async def test_public_messages_end_where_the_next_one_begins(
    worker: WorkerProcess, ask: Asker, smollm_dir: Path
) -> None:
    messages = [{"role": "system", "content": "Answer in one sentence. " * 9}]
    status, text = await ask.post("/v1/public_prefixes", {"messages": messages}, worker.signer.operator())
    assert status == 200, text
    renderer = PromptRenderer.load(smollm_dir)
    longer = renderer.encode_chat([*messages, {"role": "user", "content": "Hello?"}])
    declared = renderer.encode_chat(messages, add_generation_prompt=False)
    assert longer[: len(declared)] == declared
    assert json.loads(text)["tokens"] == len(declared)
