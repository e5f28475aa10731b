"""Public prefixes outlive their workers: declared once, put on a real worker that is killed and comes back empty."""

from __future__ import annotations

import asyncio
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import connections

from fleet import prefix_placement, public_prefixes
from fleet.dialects.native import NativeDialect
from fleet.models import PublicPrefix
from inference.prefix_id import prefix_id
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Adapter, AuditEntry, BaseModel
from tests.fleet.tiny_worker import TinyWorker
from tests.gateway.house import House, free_port

ANN = Actor("operator", "ann")
SYSTEM = [{"role": "system", "content": "You are the assistant of Initech, and answer every question at once. " * 3}]


def there(url: str) -> set[str]:
    async def look() -> set[str]:
        async with aiohttp.ClientSession() as session:
            return await NativeDialect(url, session).public_prefixes()

    return asyncio.run(look())


def command(name: str, *arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(name, *arguments, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def ids() -> set[str]:
    return {each for wishes in public_prefixes.wanted().values() for each in wishes}


def test_what_is_declared_is_written_down(house: House) -> None:
    prefix = public_prefixes.declare(ANN, "support", house.base, messages=SYSTEM)
    found = public_prefixes.find("support")
    assert found.tokens == prefix.tokens
    assert 16 <= public_prefixes.shared_tokens(found) <= len(found.tokens)
    assert public_prefixes.shared_tokens(found) % 16 == 0
    assert public_prefixes.text(found) == SYSTEM[0]["content"]
    assert ids() == {prefix_id(None, prefix.tokens)}
    with pytest.raises(Conflict, match="already"):
        public_prefixes.declare(ANN, "support", house.base, prompt="x " * 50)
    public_prefixes.withdraw(ANN, found)
    public_prefixes.withdraw(ANN, found)
    with pytest.raises(NotFound):
        public_prefixes.find("support")
    entries = list(AuditEntry.objects.unscoped().order_by("pk"))
    assert [entry.action for entry in entries] == ["public_prefix.declared", "public_prefix.withdrawn"]
    assert entries[0].after["text"] == entries[1].before["text"] == public_prefixes.text(found)


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({}, "prompt", "Exactly one"),
        ({"prompt": "x " * 40, "messages": SYSTEM}, "prompt", "Exactly one"),
        ({"prompt": "  "}, "prompt", "empty"),
        ({"prompt": "short"}, "prompt", "too few"),
        ({"prompt": "x" * 200_001}, "prompt", "200001 characters"),
        ({"prompt": "a b c d " * 600}, "prompt", "more than a request may have"),
        ({"prompt": "a\0b" * 40}, "prompt", "NUL"),
        ({"messages": []}, "messages", "1 to 100"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages", "one of system"),
        ({"messages": [{"role": "user"}]}, "messages", "a content"),
    ],
)
def test_what_cannot_be_declared(house: House, given: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as refused:
        public_prefixes.declare(ANN, "p", house.base, **given)
    assert refused.value.param == param
    with pytest.raises(Invalid) as refused:
        public_prefixes.declare(ANN, "no spaces", house.base, messages=SYSTEM)
    assert refused.value.param == "name"
    assert not PublicPrefix.objects.exists()


def test_for_an_adapter_it_follows_what_the_adapter_stands_for(house: House) -> None:
    acme = house.actor("acme")
    house.adapter(acme, "pirate", "a" * 64)
    adapter = Adapter.objects.get(tenant=acme.tenant)
    prefix = public_prefixes.declare(ANN, "pirates", house.base, messages=SYSTEM, adapter=adapter)
    assert ids() == {prefix_id("a" * 64, prefix.tokens)}
    adapter.current = None
    adapter.save()
    assert ids() == set()
    other = BaseModel.objects.create(name="other", fingerprint="e" * 64, directory="/none", context_length=9)
    with pytest.raises(Invalid, match="is an adapter of") as refused:
        public_prefixes.declare(ANN, "p", other, messages=SYSTEM, adapter=adapter)
    assert refused.value.param == "adapter"
    with pytest.raises(Invalid, match="tokenizer") as refused:
        public_prefixes.declare(ANN, "p", other, messages=SYSTEM)
    assert refused.value.param == "model"


def test_other_weights_have_other_tokens(house: House) -> None:
    prefix = public_prefixes.declare(ANN, "support", house.base, messages=SYSTEM)
    PublicPrefix.objects.update(tokens=[1] * 20, fingerprint="0" * 64)
    assert ids() == {prefix_id(None, prefix.tokens)}
    found = public_prefixes.find("support")
    assert (found.tokens, found.fingerprint) == (prefix.tokens, house.base.fingerprint)


@pytest.fixture
def worker(tiny_model_dir: Path, tmp_path: Path) -> Iterator[TinyWorker]:
    started = TinyWorker(tiny_model_dir, tmp_path, free_port())
    started.start()
    yield started
    started.kill()


@pytest.mark.slow
def test_a_worker_that_comes_back_has_them_again(house: House, worker: TinyWorker) -> None:
    house.worker(worker.url, "tiny")
    made = command("declare_public_prefix", "support", "--model", house.base.name, "--system", SYSTEM[0]["content"])
    assert made["shared_tokens"] >= 16
    assert command("public_prefixes")["prefixes"][0]["workers"] == {"tiny": False}
    placed = command("public_prefixes", "--place")["prefixes"][0]
    assert (placed["name"], placed["workers"]) == ("support", {"tiny": True})
    assert there(worker.url) == ids()

    worker.kill()
    with pytest.raises(CommandError, match="tiny"):
        command("public_prefixes", "--place")
    assert prefix_placement.standing() == {"support": {"tiny": None}}
    worker.start()
    assert there(worker.url) == set()
    done = prefix_placement.reconcile()
    assert done is not None
    assert [(one.worker, one.declared, one.problems) for one in done] == [("tiny", ["support"], [])]
    assert there(worker.url) == ids()

    command("withdraw_public_prefix", "support")
    (one,) = prefix_placement.reconcile() or ()
    assert one.withdrawn == 1
    assert there(worker.url) == set()


@pytest.mark.slow
def test_a_prefix_that_the_worker_refuses_keeps_no_other_away(
    house: House, tiny_model_dir: Path, tmp_path: Path
) -> None:
    small = TinyWorker(tiny_model_dir, tmp_path, free_port(), "--max-model-len", "64")
    small.start()
    try:
        house.worker(small.url, "small")
        public_prefixes.declare(ANN, "long", house.base, prompt="a b c d " * 50)
        short = public_prefixes.declare(ANN, "short", house.base, prompt="a b c d " * 5)
        (one,) = prefix_placement.reconcile() or ()
        assert one.declared == ["short"]
        assert len(one.problems) == 1
        assert "long: " in one.problems[0]
        assert there(small.url) == {prefix_id(None, short.tokens)}
    finally:
        small.kill()


def test_one_round_at_a_time(house: House) -> None:
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [prefix_placement._LOCK])
        assert prefix_placement.reconcile() is None
        cursor.execute("SELECT pg_advisory_unlock(%s)", [prefix_placement._LOCK])  # a closed session lets go later
    other.close()
    assert prefix_placement.reconcile() == []


def test_what_the_command_is_given_is_called_as_there(house: House) -> None:
    for option in ("--system", "--prompt"):
        with pytest.raises(CommandError, match=rf"^{option}: \d+ tokens are too few"):
            command("declare_public_prefix", "short", "--model", house.base.name, option, "You")


def test_the_command_s_example_is_long_enough(db: None, smollm_dir: Path) -> None:
    name = "smollm2-135m-instruct"
    BaseModel.objects.create(name=name, fingerprint="f" * 64, directory=str(smollm_dir), context_length=2048)
    example = load_command_class("fleet", "declare_public_prefix").example
    made = command(*shlex.split(example)[1:])
    assert made["shared_tokens"] >= 16
