"""Standing actors: a tenant with a key, an adapter and a base model; and a stranger from another tenant."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connection, connections
from psycopg.conninfo import make_conninfo
from safetensors.numpy import save_file
from uuid6 import uuid7

from tenants import keys
from tenants.access import Access, ServedModel
from tenants.admission import admit
from tenants.db import Pool
from tenants.models import (
    Adapter,
    AdapterVersion,
    ApiKey,
    BaseModel,
    Member,
    ModelAllowance,
    Plan,
    Price,
    Tenant,
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "max_position_embeddings": 1000,
    "rms_norm_eps": 1e-5,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
}


@dataclass(frozen=True)
class Actor:
    """A tenant and the one key it calls with."""

    tenant: Tenant
    key: ApiKey
    secret: str

    def access(self, *models: ServedModel) -> Access:
        """What authenticate() would return, without asking the database."""
        return Access(self.key.pk, self.tenant.pk, self.tenant.slug, None, {model.id: model for model in models})


class World:
    """Makes rows; every argument that a test does not care about has a default."""

    def __init__(self) -> None:
        self.plan = Plan.objects.create(name=f"plan-{uuid4().hex[:8]}")
        self.base = BaseModel.objects.create(
            name="llama-tiny",
            fingerprint="f" * 64,
            directory="/models/llama-tiny",
            context_length=1000,
            config=LLAMA,
        )

    def actor(self, slug: str, *, allow: bool = True, **limits: Any) -> Actor:
        """``limits`` of the tenant; with ``key_limits={…}`` and ``member_limits={…}`` those of its key and member."""
        key_limits = limits.pop("key_limits", {})
        member_limits = limits.pop("member_limits", None)
        tenant = Tenant.objects.create(slug=slug, display_name=slug.title(), plan=self.plan, **limits)
        member = None
        if member_limits is not None:
            user = get_user_model().objects.create_user(f"user-{slug}")
            member = Member.objects.create(tenant=tenant, user=user, **member_limits)
        if allow:
            ModelAllowance.objects.create(tenant=tenant, base_model=self.base)
        generated = keys.generate()
        version = keys.current_pepper()
        key = ApiKey.objects.create(
            tenant=tenant,
            public_id=generated.public_id,
            digest=keys.hash(generated.secret, version),
            pepper_version=version,
            member=member,
            **key_limits,
        )
        return Actor(tenant, key, generated.secret.reveal())

    def adapter(self, tenant: Tenant, name: str, digest: str | None = None) -> Adapter:
        adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=self.base)
        version = AdapterVersion.objects.create(
            adapter=adapter, number=1, state="ready", digest=digest or uuid4().hex * 2
        )
        adapter.current = version
        adapter.save()
        return adapter

    def price(self, input: int, cached_input: int, output: int, **values: Any) -> Price:
        """Valid since long ago, unless ``valid_from`` says otherwise."""
        values.setdefault("valid_from", datetime(2000, 1, 1, tzinfo=UTC))
        return Price.objects.create(
            base_model=self.base, input=input, cached_input=cached_input, output=output, **values
        )

    def served(self, adapter: Adapter | None = None) -> ServedModel:
        version = adapter.current if adapter else None
        return ServedModel(
            id=str(adapter) if adapter else self.base.name,
            base_model_id=self.base.pk,
            base=self.base.name,
            fingerprint=self.base.fingerprint,
            model_dir=Path(self.base.directory),
            context_length=self.base.context_length,
            adapter_version_id=version.pk if version else None,
            adapter_digest=version.digest if version else None,
            created=0,
        )


def write_adapter(directory: Path, *, rank: int = 2, seed: int = 0, **config: Any) -> Path:
    """A small PEFT adapter on q_proj for :data:`LLAMA`."""
    directory.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(seed)
    tensors = {}
    for layer in range(LLAMA["num_hidden_layers"]):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{prefix}.lora_A.weight"] = random.normal(size=(rank, 16)).astype("float32")
        tensors[f"{prefix}.lora_B.weight"] = random.normal(size=(16, rank)).astype("float32")
    save_file(tensors, directory / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": ["q_proj"]} | config
    (directory / "adapter_config.json").write_text(json.dumps(values))
    return directory


@pytest.fixture
def make_adapter(tmp_path: Path) -> Any:
    """Writes an adapter's files: ``make_adapter("name", rank=…, seed=…)``."""

    def make(name: str = "adapter", **options: Any) -> Path:
        return write_adapter(tmp_path / name, **options)

    return make


def make_tenant(slug: str, **limits: Any) -> Tenant:
    """One that nothing belongs to, of the plan ``tests``."""
    plan, _ = Plan.objects.get_or_create(name="tests")
    return Tenant.objects.create(slug=slug, display_name=slug.title(), plan=plan, **limits)


@pytest.fixture
def acme(db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def world(transactional_db: None) -> World:
    return World()


@pytest.fixture
def new_id() -> Any:
    def make() -> UUID:
        return UUID(str(uuid7()))

    return make


@pytest.fixture
def admitted(world: World, grant_keys: Any, db_pool: Pool, new_id: Callable[[], UUID]) -> Any:
    """``await admitted(actor, max_tokens=…)``: the id of a request of 100 prompt tokens, which runs."""

    async def one(actor: Actor, *, model: ServedModel | None = None, **options: Any) -> UUID:
        request_id = new_id()
        await admit(
            db_pool,
            request_id=request_id,
            access=actor.access(),
            model=model or world.served(),
            **{"prompt_tokens": 100, "max_tokens": 50} | options,
        )
        return request_id

    return one


@pytest.fixture
def dsn(transactional_db: None) -> str:
    """The test database, for processes that a test starts."""
    params = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port")
    return make_conninfo(**{name: params[name] for name in names if params.get(name)})


@pytest.fixture
async def orm_thread() -> AsyncIterator[None]:
    """For tests that reach the ORM through sync_to_async: its thread gives its connection back at the end."""
    yield
    await sync_to_async(connections.close_all)()
