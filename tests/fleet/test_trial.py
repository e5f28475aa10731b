"""The gate: a real worker computes with an adapter and without, beside what transformers and PEFT computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from django.core.management import CommandError, call_command
from safetensors.numpy import load_file, save_file

from fleet import tasks, trial
from inference.reference import reference
from tenants import activation, intake
from tenants.actors import Actor
from tenants.errors import Conflict, NotFound
from tenants.models import Activation, AdapterVersion, AuditEntry, Tenant
from tests.fleet.tiny_worker import TinyWorker, peft_adapter
from tests.gateway.house import House, free_port

pytestmark = pytest.mark.slow
OPERATOR = Actor("operator", "ann")


@pytest.fixture(scope="module")
def tiny_worker(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyWorker]:
    worker = TinyWorker(tiny_model_dir, tmp_path_factory.mktemp("worker"), free_port())
    worker.start()
    yield worker
    worker.kill()


@pytest.fixture(scope="module")
def made(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return peft_adapter(tiny_model_dir, tmp_path_factory.mktemp("made") / "adapter")


def checked(tenant: Tenant, source: Path, name: str = "pirate") -> AdapterVersion:
    version = intake.receive(tenant=tenant, name=name, source=source)
    intake.check(version.pk)
    version.refresh_from_db()
    return version


def tried(version: AdapterVersion) -> Activation:
    trial.run(version.pk)
    version.refresh_from_db()
    return Activation.objects.get(tenant=version.adapter.tenant, version=version)


def copy(source: Path, out: Path, **changed: Any) -> Path:
    """The adapter again, its config or (as ``scale``) its B matrices changed."""
    out.mkdir()
    tensors, scale = load_file(source / "adapter_model.safetensors"), changed.pop("scale", None)
    if scale is not None:
        tensors = {name: value * numpy.float32(scale) if "lora_B" in name else value for name, value in tensors.items()}
    save_file(tensors, out / "adapter_model.safetensors")
    config = json.loads((source / "adapter_config.json").read_text())
    (out / "adapter_config.json").write_text(json.dumps(config | changed))
    return out


def test_an_adapter_that_agrees_with_peft_is_ready(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, tiny_model_dir: Path, made: Path, tmp_path: Path
) -> None:
    house.worker(tiny_worker.url, "tiny")
    source = copy(made, tmp_path / "a")
    (source / "golden.json").write_text(json.dumps(reference(tiny_model_dir, source)))
    version = checked(tenant, source)
    assert (version.state, version.adapter.current) == ("checked", None), "the files are right, no more"
    found = tried(version)
    assert (version.state, found.state) == ("ready", "passed"), found.report
    assert found.report["reference"]["most"] < 1e-3, "float32 against float32"
    assert found.report["change"]["most"] > 0.05
    assert tenant.adapters.get().current_id == version.pk
    entry = AuditEntry.objects.filter(tenant=tenant, action="adapter.version_ready").get()
    assert (entry.actor_kind, entry.after["trial"]) == ("system", "passed")


def test_references_of_another_adapter_are_not_met(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, tiny_model_dir: Path, made: Path, tmp_path: Path
) -> None:
    """The same tensors under a config that scales them twice as much: PEFT says one thing, the worker another."""
    house.worker(tiny_worker.url, "tiny")
    source = copy(made, tmp_path / "a", lora_alpha=16)
    (source / "golden.json").write_text(json.dumps(reference(tiny_model_dir, made)))
    version = checked(tenant, source)
    found = tried(version)
    assert (version.state, found.state) == ("rejected", "failed")
    assert "from the references" in version.report["message"]
    assert tenant.adapters.get().current is None


def test_an_adapter_that_changes_nothing_is_rejected(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, made: Path, tmp_path: Path
) -> None:
    house.worker(tiny_worker.url, "tiny")
    version = checked(tenant, copy(made, tmp_path / "zero", scale=0.0))
    tried(version)
    assert version.state == "rejected"
    assert "changes nothing" in version.report["problems"][0]["message"]


@pytest.mark.parametrize("scale", [1e30, 1e37])
def test_numbers_that_overflow_are_rejected(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, made: Path, tmp_path: Path, scale: float
) -> None:
    house.worker(tiny_worker.url, "tiny")
    version = checked(tenant, copy(made, tmp_path / "huge", scale=scale))
    for _ in range(activation.MAX_TRIES):
        found = tried(version)
    assert (version.state, found.state) == ("rejected", "failed"), found.report


def test_without_a_worker_it_waits_and_is_tried_again(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, made: Path, tmp_path: Path
) -> None:
    version = checked(tenant, copy(made, tmp_path / "a"))
    found = tried(version)
    assert (version.state, found.state, found.report["message"]) == (
        "checked",
        "waiting",
        f"No worker of {house.base} is registered.",
    )
    gone = house.worker(f"http://127.0.0.1:{free_port()}", "gone")
    assert "gone cannot try it now" in tried(version).report["message"]
    assert tried(version).tries == 0, "nobody's fault: it may wait for days"
    assert tasks.try_waiting_adapters() == 0, "just tried"
    Activation.objects.filter(tenant=tenant).update(tried_at="2000-01-01T00:00:00Z")
    assert tasks.try_waiting_adapters() == 1
    gone.delete()
    house.worker(tiny_worker.url, "tiny")
    assert tried(version).state == "passed"
    tried(version)
    assert AuditEntry.objects.filter(tenant=tenant, action="adapter.version_ready").count() == 1, "decided once"


def test_an_operator_lets_one_through_and_it_is_on_record(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, made: Path, tmp_path: Path
) -> None:
    house.worker(tiny_worker.url, "tiny")
    version = checked(tenant, copy(made, tmp_path / "zero", scale=0.0))
    tried(version)
    with pytest.raises(NotFound):
        activation.waive(OPERATOR, house.actor("globex").tenant, "pirate", 1, "not theirs")
    with pytest.raises(CommandError, match="There is no adapter"):
        call_command("waive_adapter", "--tenant", "globex", "--name", "pirate", "--number", "1", "--reason", "x")
    activation.waive(OPERATOR, tenant, "pirate", 1, "a test of ours")
    version.refresh_from_db()
    assert (version.state, version.report) == ("ready", {})
    assert tenant.adapters.get().current_id == version.pk
    entry = AuditEntry.objects.filter(tenant=tenant, action="adapter.version_ready").get()
    assert (entry.actor_name, entry.before["state"], entry.after["message"]) == ("ann", "rejected", "a test of ours")
    with pytest.raises(Conflict):
        activation.waive(OPERATOR, tenant, "pirate", 1, "twice")


def test_a_rejected_one_is_tried_again_on_request(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, made: Path, tmp_path: Path
) -> None:
    house.worker(tiny_worker.url, "tiny")
    version = checked(tenant, copy(made, tmp_path / "zero", scale=0.0))
    tried(version)
    activation.try_again(Actor("key", "k"), tenant, "pirate", 1)
    version.refresh_from_db()
    assert version.state == "checked"
    assert tried(version).state == "failed"


def test_references_that_the_base_model_cannot_be_asked_are_refused(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, made: Path, tmp_path: Path
) -> None:
    house.worker(tiny_worker.url, "tiny")
    source = copy(made, tmp_path / "a")
    scores = {"logprobs": [-1.0], "following": [[1, -1.0]]}
    (source / "golden.json").write_text(json.dumps({"prompts": [{"token_ids": [1, 2**30], "adapter": scores}]}))
    version = checked(tenant, source)
    tried(version)
    assert version.state == "rejected"
    assert "prompts[0].token_ids holds an id" in version.report["message"]


def test_references_of_another_base_model_are_passed_over(
    house: House, tenant: Tenant, tiny_worker: TinyWorker, made: Path, tmp_path: Path
) -> None:
    house.worker(tiny_worker.url, "tiny")
    source = copy(made, tmp_path / "a")
    scores = {"logprobs": [-1.0], "following": [[1, -1.0]]}
    document = {"base_fingerprint": "0" * 64, "prompts": [{"token_ids": [1, 2], "adapter": scores}]}
    (source / "golden.json").write_text(json.dumps(document))
    version = checked(tenant, source)
    found = tried(version)
    assert version.state == "ready"
    assert "for another base model (000000000000)" in found.report["message"]


def test_what_nobody_thought_of_does_not_wait_for_ever(
    house: House, tenant: Tenant, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.worker("http://127.0.0.1:9", "tiny")
    monkeypatch.setattr(trial, "default_prompts", lambda renderer: 1 / 0)
    version = checked(tenant, copy(made, tmp_path / "a"))
    for number in range(activation.MAX_TRIES):
        assert version.state == "checked", number
        found = tried(version)
    assert (version.state, found.state) == ("rejected", "failed")
