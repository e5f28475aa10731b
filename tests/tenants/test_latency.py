from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tenants import provisioning
from tenants.actors import Actor
from tenants.latency import NAMES, latencies
from tenants.models import ApiKey, InferenceRequest
from tests.gateway.api import ledger

DOER = Actor("command", "tests")
NOW = timezone.now()


def took(key: ApiKey, seconds: float, first_ms: int | None, queue_ms: int | None, **values: Any) -> None:
    row = ledger.ended(key, NOW, after=timedelta(seconds=seconds), **values)
    InferenceRequest.objects.unscoped().filter(pk=row.pk).update(first_token_ms=first_ms, queue_ms=queue_ms)


def key_of(slug: str) -> ApiKey:
    return ApiKey.issue(provisioning.create(DOER, slug))[0]


@pytest.mark.django_db
def test_percentiles_are_of_the_tenants_own_completed_requests() -> None:
    acme, other = key_of("acme"), key_of("other")
    took(acme, 2.0, 1000, 100, completion_tokens=11)
    took(acme, 4.0, 2000, 300, completion_tokens=5)
    took(acme, 90.0, 80_000, 70_000, outcome="failed")
    took(other, 80.0, 70_000, 60_000)
    found = latencies(acme.tenant, NOW - timedelta(hours=1))
    assert {name: found[name]["p50"] for name in NAMES} == pytest.approx(
        {"first_token": 1.5, "inter_token": 0.3, "queue": 0.2, "whole": 3.0}
    )
    assert found["whole"] == pytest.approx({"count": 2, "p50": 3.0, "p90": 3.8, "p99": 3.98})


@pytest.mark.django_db
def test_what_was_not_measured_is_left_out_of_its_own_figure_only() -> None:
    key = key_of("acme")
    took(key, 1.0, None, None, completion_tokens=1)  # a line of a batch before timings were kept
    took(key, 3.0, 500, 20, completion_tokens=1)  # no second token, so nothing between
    found = latencies(key.tenant, NOW - timedelta(hours=1))
    assert {name: found[name]["count"] for name in NAMES} == {
        "first_token": 1,
        "inter_token": 0,
        "queue": 1,
        "whole": 2,
    }
    assert found["inter_token"]["p50"] is None


@pytest.mark.django_db
def test_only_since_then() -> None:
    key = key_of("acme")
    took(key, 1.0, 500, 20)
    assert latencies(key.tenant, NOW + timedelta(hours=1))["whole"] == {
        "count": 0,
        "p50": None,
        "p90": None,
        "p99": None,
    }
