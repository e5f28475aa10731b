"""Requests that came and went, and refusals, as rows of an actor's tenant."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone
from uuid6 import uuid7

from tenants.models import Denial, InferenceRequest, LedgerEntry, Payload, PayloadStoring
from tests.gateway.house import Actor, House


def ended_request(house: House, owner: Actor, at: datetime | None = None, **values: Any) -> InferenceRequest:
    """One that was computed and billed, and says where its time went."""
    at = at or timezone.now() - timedelta(minutes=1)
    outcome = values.pop("outcome", "completed")
    common: dict[str, Any] = {"first_token_ms": 640, "queue_ms": 150, "prefill_ms": 470}
    made: InferenceRequest = InferenceRequest.objects.create(
        id=uuid7(),
        tenant=owner.tenant,
        key=owner.key,
        base_model=house.base,
        state="settled",
        prompt_tokens=120,
        max_tokens=400,
        held_cost=900,
        emitted_tokens=210,
        admitted_at=at,
        lease_expires_at=at,
        settled_at=at + timedelta(milliseconds=4321),
        **common | values,
    )
    LedgerEntry.objects.create(
        request=made,
        tenant=owner.tenant,
        key=owner.key,
        base_model=house.base,
        prompt_tokens=120,
        cached_tokens=64,
        completion_tokens=210,
        cost=512,
        outcome=outcome,
        finish_reason="stop",
        admitted_at=at,
        created_at=made.settled_at,
    )
    return made


def denial(owner: Actor, **values: Any) -> Denial:
    """Refusals of one reason within this hour."""
    now = timezone.now()
    common: dict[str, Any] = {
        "hour": now.replace(minute=0, second=0, microsecond=0),
        "code": "rate_limit_exceeded",
        "limit": "tokens_per_minute",
        "subject": "tenant",
        "count": 7,
        "last_at": now,
        "last_request_id": uuid4(),
        "last_model": "tiny",
        "last_message": "The request asks for 9 + 16 tokens; 3 of your limit tokens_per_minute of 100 are left.",
    }
    found: Denial = Denial.objects.create(tenant=owner.tenant, key=owner.key, **common | values)
    return found


def stored_request(house: House, owner: Actor) -> InferenceRequest:
    """One whose prompt and answer are stored."""
    PayloadStoring.objects.unscoped().get_or_create(tenant=owner.tenant, defaults={"days": 7})
    made = ended_request(house, owner)
    Payload.objects.create(
        request=made,
        tenant=owner.tenant,
        prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is <b>2</b> + 2?"}],
        answers=["Four."],
        prompt_characters=100,
        answer_characters=5,
        created_at=timezone.now(),
    )
    return made
