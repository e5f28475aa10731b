"""Workers over the operator API: what they say of themselves, and a suspended tenant's streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleet import samples
from fleet.models import Worker
from tenants.models import AuditEntry, BaseModel
from tests.gateway.answering import answering
from tests.gateway.api.conftest import Caller
from tests.gateway.api.test_management import error

METRICS = b"""# HELP vllm:num_requests_running Requests in the batch
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
loraplex:adapter_slots{model_name="m"} 8.0
loraplex:kv_blocks{model_name="m"} 100.0
loraplex:adapter_resident{digest="bb"} 1.0
loraplex:adapter_resident{digest="aa"} 1.0
loraplex:adapter_resident{digest="cc"} 0.0
loraplex:build_info{fingerprint="ffff",version="1.2.3",weights="fp32"} 1.0
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 5.0
vllm:request_success_total{finished_reason="stop",model_name="m"} 5.0
what is this
vllm:num_preemptions_total{model_name="m"} NaN
"""


@pytest.fixture
def base(db: None) -> BaseModel:
    return BaseModel.objects.create(name="m", fingerprint="f" * 64, directory="/m", context_length=9)


@pytest.fixture
def served() -> Iterator[str]:
    with answering(metrics=METRICS) as url:
        yield url


@pytest.mark.usefixtures("grant_keys")
def test_a_workers_life(operator: Caller, base: BaseModel, served: str) -> None:
    path, body = "/api/operator/workers/w1", {"url": served, "model": "m"}
    made = operator.put(path, body)
    assert made.status_code == 201, made.content
    assert made.json()["load"] == {
        "running": 3, "waiting": 2, "kv_usage": 0.25, "kv_blocks": 100, "slots": 8, "resident": ["aa", "bb"],
        "adapters_loading": None, "preemptions": None, "version": "1.2.3", "weights": "fp32",
    }  # fmt: skip
    assert made.json()["problem"] is None
    assert operator.put(path, body).status_code == 200
    assert error(operator.delete(path), 409)["code"] == "worker_active"
    assert operator.patch(path, {"state": "draining"}).json()["state"] == "draining"
    assert operator.patch(path, {"state": "active"}).json()["state"] == "active"
    operator.patch(path, {"state": "draining"})
    assert operator.delete(path).status_code == 204
    assert error(operator.get(path), 404)["code"] == "not_found"
    actions = [entry.action for entry in AuditEntry.objects.unscoped().order_by("id")]
    names = ["registered", "drained", "activated", "drained", "removed"]
    assert actions == [f"worker.{name}" for name in names]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"url": "ftp://h"}, "url"),
        ({"url": "http://u:p@h"}, "url"),
        ({"model": "none-such"}, "model"),
        ({"dialect": "vllm"}, "dialect"),
        ({"state": "gone"}, "state"),
        ({"port": 1}, "port"),
    ],
)
def test_workers_that_cannot_be(operator: Caller, base: BaseModel, change: dict[str, Any], param: str) -> None:
    body = {"url": "http://127.0.0.1:1", "model": "m"} | change
    assert error(operator.put("/api/operator/workers/w", body), 400)["param"] == param
    assert (
        error(operator.put("/api/operator/workers/no%20name", {"url": "http://h", "model": "m"}), 400)["param"]
        == "name"
    )
    assert not Worker.objects.exists()


@pytest.mark.usefixtures("grant_keys")
def test_other_weights_are_refused(operator: Caller, base: BaseModel, served: str) -> None:
    BaseModel.objects.update(fingerprint="e" * 64)
    refused = error(operator.put("/api/operator/workers/w", {"url": served, "model": "m"}), 400)
    assert refused["param"] == "model"


@pytest.mark.usefixtures("grant_keys")
@pytest.mark.parametrize("nonsense", [b"", b"\xff\xfe", b"<html>", b"vllm:num_requests_running 1e999\n" * 10])
def test_the_list_shows_those_that_do_not_answer_too(operator: Caller, base: BaseModel, nonsense: bytes) -> None:
    Worker.objects.create(name="down", url="http://127.0.0.1:1", base_model=base)
    with answering(metrics=nonsense) as url:
        Worker.objects.create(name="up", url=url, base_model=base)
        down, up = operator.get("/api/operator/workers").json()["data"]
    assert (down["name"], down["load"]) == ("down", None)
    assert "cannot be reached" in down["problem"]
    assert (up["problem"], up["load"]["running"]) == (None, 0)


@pytest.mark.usefixtures("grant_keys")
def test_samples_come_back_as_they_were(base: BaseModel, served: str) -> None:
    up = Worker.objects.create(name="up", url=served, base_model=base)
    down = Worker.objects.create(name="down", url="http://127.0.0.1:1", base_model=base)
    Worker.objects.create(name="off", url="http://127.0.0.1:1", base_model=base, state="disabled")
    assert samples.take() == 2
    latest = samples.latest()
    assert set(latest) == {up.pk, down.pk}
    assert (latest[up.pk].problem, latest[down.pk].report) == ("", {})
    report = samples.report_of(latest[up.pk])
    assert report is not None
    assert (report.resident, report.first_token.counts, report.finished) == (("aa", "bb"), (4, 5), {"stop": 5})
    assert report.first_token.quantile(0.4) == 0.05
    assert set(samples.first_since(latest[up.pk].at)) == {up.pk}
