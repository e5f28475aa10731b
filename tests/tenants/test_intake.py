"""How an adapter gets in, and how hostile files do not."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from kombu.exceptions import OperationalError
from safetensors.numpy import load_file, save_file

from inference.adapter_format import content_digest, store_path
from tenants import adapter_store, intake, tasks
from tenants.adapter_files import incoming
from tenants.errors import AdapterRefused, NotConfigured
from tenants.models import AdapterVersion, BaseModel, ModelAllowance


@pytest.fixture
def tenant(world: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings.INCOMING_DIR = tmp_path / "incoming"
    settings.ADAPTER_STORE = tmp_path / "store"
    settings.ACTIVATION_GATE = False  # the trial at a worker: tests/fleet/test_trial.py
    return world.actor("acme").tenant


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids whose check was queued; the test itself plays the worker. A real one stands at the end."""
    ids: list[int] = []
    monkeypatch.setattr(tasks.check_adapter, "delay", ids.append)
    return ids


def ones(*shape: int) -> Any:
    return numpy.ones(shape, dtype=numpy.float32)


def stored(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "store").glob("*/*")) if (tmp_path / "store").exists() else []


def test_from_files_to_the_alias(tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path) -> None:
    source = make_adapter(rank=3)
    (source / "README.md").write_text("about it")
    version = intake.receive(tenant=tenant, name="pirate", source=source)
    assert (version.state, version.number, queued) == ("pending", 1, [version.pk])
    assert version.adapter.current is None
    tasks.check_adapter(version.pk)
    version.refresh_from_db()
    version.adapter.refresh_from_db()
    assert (version.state, version.digest) == ("ready", content_digest(source))
    assert version.adapter.current == version
    assert version.spec["max_rank"] == 3
    assert [target["module"] for target in version.spec["targets"]] == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
    ]
    assert version.num_bytes == 2 * 2 * 16 * 3 * 4
    final = store_path(tmp_path / "store", version.digest)
    assert sorted(path.name for path in final.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o444 for path in final.iterdir())
    assert list((tmp_path / "incoming").iterdir()) == [], "nothing is left behind"
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_dora_with_a_head_is_accepted_and_its_spec_kept(tenant: Any, queued: list[int], make_adapter: Any) -> None:
    source = make_adapter(rank=2, target_modules=["q_proj", "lm_head"], use_dora=True)
    path = source / "adapter_model.safetensors"
    tensors = load_file(path)
    head = "base_model.model.lm_head."
    tensors |= {head + "lora_A.weight": ones(2, 16), head + "lora_B.weight": ones(64, 2)}
    tensors[head + "base_layer.weight"] = ones(64, 16)  # as PEFT saves it
    modules = ("lm_head", *(f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)))
    for module in modules:
        rows = 64 if module == "lm_head" else 16
        tensors[f"base_model.model.{module}.lora_magnitude_vector"] = ones(rows)
    save_file(tensors, path)
    version = intake.receive(tenant=tenant, name="dora", source=source)
    intake.check(version.pk)
    version.refresh_from_db()
    assert (version.state, version.report) == ("ready", {})
    assert {target["module"] for target in version.spec["targets"]} == set(modules)
    assert all(target["dora"] for target in version.spec["targets"])
    assert version.num_bytes == sum(value.nbytes for name, value in tensors.items() if "base_layer" not in name)


def test_checking_twice_changes_nothing(tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path) -> None:
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    for _ in range(2):
        intake.check(version.pk)
    intake.check(987654321)
    assert tenant.adapters.get().versions.count() == 1
    assert len(stored(tmp_path)) == 1


def test_a_task_killed_half_way_is_repeated(tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path) -> None:
    """Stored, but the outcome never committed: the message comes again."""
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    adapter_store.put(incoming(version), version.adapter.base_model)
    intake.check(version.pk)
    version.refresh_from_db()
    assert version.state == "ready"
    assert len(stored(tmp_path)) == 1


def test_the_same_content_is_the_same_version(
    tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path
) -> None:
    first, second = make_adapter("one", seed=1), make_adapter("two", seed=2)
    one = intake.receive(tenant=tenant, name="pirate", source=first)
    again = intake.receive(tenant=tenant, name="pirate", source=first)
    assert (again.pk, queued) == (one.pk, [one.pk, one.pk])
    intake.check(one.pk)
    two = intake.receive(tenant=tenant, name="pirate", source=second)
    intake.check(two.pk)
    adapter = tenant.adapters.select_related("current").get()
    assert (two.number, adapter.current) == (2, two)
    back = intake.receive(tenant=tenant, name="pirate", source=first)
    adapter.refresh_from_db()
    assert (back.pk, adapter.current_id) == (one.pk, one.pk), "adding old content again goes back to its version"
    elsewhere = intake.receive(tenant=tenant, name="copy", source=first)
    intake.check(elsewhere.pk)
    assert len(stored(tmp_path)) == 2, "the store holds a content once"


def test_a_late_check_does_not_move_the_alias_back(tenant: Any, queued: list[int], make_adapter: Any) -> None:
    one = intake.receive(tenant=tenant, name="pirate", source=make_adapter("one", seed=1))
    two = intake.receive(tenant=tenant, name="pirate", source=make_adapter("two", seed=2))
    intake.check(two.pk)
    intake.check(one.pk)
    assert tenant.adapters.get().current_id == two.pk


def test_a_damaged_copy_in_the_store_is_replaced(
    tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path
) -> None:
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    final = store_path(tmp_path / "store", version.digest)
    final.mkdir(parents=True)
    (final / "adapter_config.json").write_text("half a file")
    intake.check(version.pk)
    assert content_digest(final) == version.digest


@pytest.mark.parametrize(
    ("options", "field"),
    [({"use_dora": True}, "use_dora"), ({"r": 5}, "r"), ({"surprise": 1}, "surprise"), ({"bias": "all"}, "bias")],
)
def test_a_bad_adapter_is_rejected_with_a_report(
    options: dict[str, Any], field: str, tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path
) -> None:
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter(**options))
    intake.check(version.pk)
    version.refresh_from_db()
    assert version.state == "rejected"
    assert version.report["field"] == field
    assert field in version.report["message"]
    assert tenant.adapters.get().current is None
    assert stored(tmp_path) == []
    assert list((tmp_path / "incoming").iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_the_database_refuses_is_still_reported(
    name: str, tenant: Any, queued: list[int], make_adapter: Any
) -> None:
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter(**{name: 1}))
    intake.check(version.pk)
    version.refresh_from_db()
    assert (version.state, version.report["field"]) == ("rejected", repr(name)[1:-1])


def test_an_unexpected_failure_rejects(
    tenant: Any, queued: list[int], make_adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(adapter_store, "check_adapter", fail)
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    intake.check(version.pk)
    version.refresh_from_db()
    assert (version.state, version.report["message"]) == ("rejected", "the adapter could not be checked")
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_failing_machine_is_tried_again_but_not_for_ever(
    tenant: Any, queued: list[int], make_adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(adapter_store, "check_adapter", fail)
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    with pytest.raises(OSError, match="Input"):
        intake.check(version.pk)
    AdapterVersion.objects.unscoped().update(created_at="2000-01-01T00:00:00Z")
    assert [tasks.check_waiting_adapters() for _ in range(intake.MAX_TRIES + 1)] == [1] * 9 + [0, 0]
    version.refresh_from_db()
    assert version.state == "rejected"
    assert list((tmp_path / "incoming").iterdir()) == []


def test_directories_are_private_and_nothing_is_left(
    tenant: Any, queued: list[int], make_adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    intake.check(intake.receive(tenant=tenant, name="pirate", source=make_adapter()).pk)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("incoming", "store")} == {0o700}

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(intake, "content_digest", fail)
    with pytest.raises(OSError, match="space"):
        intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    assert list((tmp_path / "incoming").iterdir()) == []


def test_hostile_directories_are_refused_at_once(
    tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")

    def spoil(name: str) -> Path:
        source: Path = make_adapter(name)
        path = source / "adapter_config.json"
        match name:
            case "link":
                path.unlink()
                path.symlink_to(secret)
            case "pipe":
                path.unlink()
                os.mkfifo(path)
            case "pickle":
                (source / "adapter_model.bin").write_bytes(b"x")
            case "huge":
                os.truncate(path, 2 << 20)
            case "missing":
                path.unlink()
        return source

    for name in ("link", "pipe", "pickle", "huge", "missing"):
        with pytest.raises(AdapterRefused):
            intake.receive(tenant=tenant, name="pirate", source=spoil(name))
    with pytest.raises(AdapterRefused):
        intake.receive(tenant=tenant, name="pirate", source=tmp_path / "nowhere")
    assert AdapterVersion.objects.unscoped().count() == 0
    assert list((tmp_path / "incoming").iterdir()) == []
    assert queued == []


@pytest.mark.parametrize("name", ["", "Pirate", "a/b", "../x", "a b", "x" * 64, "-x"])
def test_bad_names_are_refused(name: str, tenant: Any, make_adapter: Any) -> None:
    with pytest.raises(ValidationError, match="name"):
        intake.receive(tenant=tenant, name=name, source=make_adapter())


def test_the_base_model_has_to_be_clear(tenant: Any, world: Any, queued: list[int], make_adapter: Any) -> None:
    other = BaseModel.objects.create(name="other", fingerprint="0" * 64, directory="/o", context_length=10)
    ModelAllowance.objects.create(tenant=tenant, base_model=other)
    with pytest.raises(AdapterRefused, match="llama-tiny, other"):
        intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    version = intake.receive(tenant=tenant, name="pirate", source=make_adapter(), base_model=world.base)
    with pytest.raises(AdapterRefused, match="not of other"):
        intake.receive(tenant=tenant, name="pirate", source=make_adapter(), base_model=other)
    assert version.adapter.base_model == world.base


def test_without_a_broker_it_waits(tenant: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(version_id: int) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(tasks.check_adapter, "delay", down)
    with pytest.raises(NotConfigured, match="broker"):
        intake.receive(tenant=tenant, name="pirate", source=make_adapter())
    [version] = AdapterVersion.objects.unscoped()
    assert version.state == "pending"
    ids: list[int] = []
    monkeypatch.setattr(tasks.check_adapter, "delay", ids.append)
    assert tasks.check_waiting_adapters() == 0, "not yet: its message may still come"
    AdapterVersion.objects.unscoped().update(created_at="2000-01-01T00:00:00Z")
    assert tasks.check_waiting_adapters() == 1
    assert ids == [version.pk]


@pytest.mark.slow
def test_a_real_celery_worker_checks_it(
    world: Any, make_adapter: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: command → PostgreSQL → broker → worker process → store, and back to the waiting command."""
    from gateway.embedded.process import spawn, stop

    monkeypatch.setenv("LORAPLEX_ACTIVATION_GATE", "false")
    world.actor("acme")
    command = [sys.executable, "-m", "celery", "-A", "gateway.celery", "worker", "--pool", "solo", "--loglevel", "INFO"]
    command += ["--queues", "adapters"]
    process = spawn(command, tmp_path / "celery.log")
    try:
        call_command("add_adapter", tenant="acme", name="pirate", path=make_adapter(), timeout=60)
    finally:
        stop(process)
    assert "acme/pirate v1 is ready: 2 modules" in capsys.readouterr().out
