"""Who is calling and what they may use; and the stranger, who finds nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from tenants import keys
from tenants.access import access_of_key, authenticate
from tenants.db import Pool
from tenants.errors import InvalidKey, ModelNotFound
from tenants.models import AdapterAllowance, AdapterVersion, ApiKey, ModelAllowance

pytestmark = pytest.mark.usefixtures("orm_thread")


@pytest.fixture
def owner(world: Any) -> Any:
    return world.actor("acme")


@pytest.fixture
def stranger(world: Any) -> Any:
    return world.actor("globex")


async def test_the_owner_sees_its_models(owner: Any, world: Any, db_pool: Pool) -> None:
    adapter = await sync_to_async(world.adapter)(owner.tenant, "pirate")
    access = await authenticate(db_pool, owner.secret)
    assert (access.key_id, access.tenant_id, access.tenant) == (owner.key.pk, owner.tenant.pk, "acme")
    assert list(access.models) == ["acme/pirate", "llama-tiny"]
    base, served = access.resolve("llama-tiny"), access.resolve("acme/pirate")
    assert (base.adapter_digest, base.base, base.context_length) == (None, "llama-tiny", 1000)
    assert (served.adapter_digest, served.base_model_id) == (adapter.current.digest, world.base.pk)
    assert access.resolve("pirate") is served
    assert await access_of_key(db_pool, owner.key.pk) == access


async def test_a_stranger_finds_nothing(owner: Any, stranger: Any, world: Any, db_pool: Pool) -> None:
    adapter = await sync_to_async(world.adapter)(owner.tenant, "pirate")
    own = await sync_to_async(world.adapter)(stranger.tenant, "haiku")
    access = await authenticate(db_pool, stranger.secret)
    assert list(access.models) == ["globex/haiku", "llama-tiny"]
    assert access.resolve("haiku").adapter_digest == own.current.digest
    guesses = [
        "acme/pirate",
        "pirate",
        adapter.current.digest,
        f"acme/{adapter.current.digest}",
        str(adapter.current.pk),
    ]
    for name in guesses:
        with pytest.raises(ModelNotFound) as theirs:
            access.resolve(name)
        with pytest.raises(ModelNotFound) as nobodys:
            access.resolve("acme/nothing")
        assert str(theirs.value).replace(name, "…") == str(nobodys.value).replace("acme/nothing", "…")


async def test_an_allowance_shows_it_under_its_owners_name(
    owner: Any, stranger: Any, world: Any, db_pool: Pool
) -> None:
    adapter = await sync_to_async(world.adapter)(owner.tenant, "pirate")
    await sync_to_async(AdapterAllowance.objects.create)(tenant=stranger.tenant, adapter=adapter)
    access = await authenticate(db_pool, stranger.secret)
    assert access.resolve("acme/pirate").adapter_digest == adapter.current.digest
    with pytest.raises(ModelNotFound):
        access.resolve("pirate")


async def test_an_adapter_needs_its_base_model_and_a_ready_version(owner: Any, world: Any, db_pool: Pool) -> None:
    def pending() -> None:
        adapter = world.adapter(owner.tenant, "waiting")
        adapter.current = None
        adapter.save()
        AdapterVersion.objects.create(adapter=adapter, number=2)

    await sync_to_async(pending)()
    assert list((await authenticate(db_pool, owner.secret)).models) == ["llama-tiny"]
    await sync_to_async(world.adapter)(owner.tenant, "pirate")
    await sync_to_async(ModelAllowance.objects.filter(tenant=owner.tenant).delete)()
    assert list((await authenticate(db_pool, owner.secret)).models) == []


@pytest.mark.parametrize("what", ["revoked", "expired", "other secret", "unknown", "malformed"])
async def test_wrong_keys_are_alike(what: str, owner: Any, db_pool: Pool) -> None:
    text = owner.secret
    match what:
        case "revoked":
            owner.key.revoked_at = datetime.now(UTC)
        case "expired":
            owner.key.expires_at = datetime.now(UTC) - timedelta(seconds=1)
        case "other secret":
            body = text[:22] + ("x" * 33)
            text = body + keys._base62(keys.zlib.crc32(body.encode()), 6)
        case "unknown":
            text = keys.generate().secret.reveal()
        case "malformed":
            text = text[:-1]
    await sync_to_async(owner.key.save)()
    with pytest.raises(InvalidKey) as caught:
        await authenticate(db_pool, text)
    assert str(caught.value) == str(InvalidKey())


async def test_last_use_is_noted_to_the_minute(owner: Any, db_pool: Pool) -> None:
    @sync_to_async
    def last_used() -> datetime | None:
        found: datetime | None = ApiKey.objects.get(pk=owner.key.pk, tenant=owner.tenant).last_used_at
        return found

    await authenticate(db_pool, owner.secret)
    first = await last_used()
    assert first is not None
    await authenticate(db_pool, owner.secret)
    assert await last_used() == first
