"""Everything that the OpenAPI document allows, and much that it forbids, sent to a running gateway: nothing is an error
of the server's, and every answer is one that the document describes.

Paths lead to objects that exist every other time. Bounded by time; the same seed and the same order each time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from django.contrib.auth import get_user_model
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tenants import webhooks
from tenants.actors import Actor as Who
from tenants.models import ApiKey, Member, ModelAllowance, OperatorKey, Tenant
from tests.gateway.api import ledger
from tests.gateway.house import Actor, House, Process

SECONDS = 45.0
"""For all operations together; each has an equal part of what is left."""

MOST_CASES = 50
"""Of one operation, of those that the document allows and of those that it forbids."""
CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
SKIPPED = {"GET /v1/ws": "a WebSocket: test_sockets.py"}


@pytest.fixture
def secrets(house: House, acme: Actor) -> dict[str, str]:
    """A key for each scheme of the document."""
    _, manage = ApiKey.issue(acme.tenant, scope="manage")
    _, operator = OperatorKey.issue("tests")
    return {"inference": acme.secret, "manage": manage.reveal(), "operator": operator.reveal()}


@pytest.fixture
def objects(house: House, acme: Actor) -> dict[str, list[str]]:
    """Values of path parameters that lead to something: acme's own, or for operators those of a tenant besides."""
    other = Tenant.objects.create(slug="besides", display_name="Besides", plan=house.plan)
    ModelAllowance.objects.create(tenant=other, base_model=house.base)
    found: dict[str, list[str]] = {"tenant": ["besides"], "owner": ["acme"], "number": ["1"]}
    found["name"] = ["pirate", house.base.name, house.plan.name, "stub", "adapter_config.json"]
    for tenant in (acme.tenant, other):
        user = get_user_model().objects.create_user(f"ann@{tenant.slug}")
        member = Member.objects.create(tenant=tenant, user=user, role="developer")
        spare, _ = ApiKey.issue(tenant)
        version = ledger.adapter(tenant, "pirate")
        request = ledger.ended(spare, timezone.now(), version=version)
        webhook, _ = webhooks.create(Who("system", "tests"), tenant, url="https://example.org/", events=["*"])
        delivery = webhooks.test(Who("system", "tests"), webhook)
        for name, value in {
            "key_id": spare.public_id,
            "member_id": member.public_id,
            "request_id": request.pk,
            "webhook_id": webhook.pk,
            "delivery_id": delivery.pk,
            "model_id": house.base.name,
            "receiver": tenant.slug,
        }.items():
            found.setdefault(name, []).append(str(value))
    return found


def tell(operation: Any) -> str:
    return f"{operation.method.upper()} {operation.path}"


def ordered(schema: Any) -> Iterator[Any]:
    """What only reads first, so that there is something to read; what removes last."""
    found = [result.ok() for result in schema.get_all_operations()]
    order = ["GET", "POST", "PATCH", "PUT", "DELETE"]
    yield from sorted(found, key=lambda operation: (order.index(operation.method.upper()), operation.path))


class Asker:
    """Sends the cases of one operation, as many as fit into its time, and looks at each answer."""

    seconds_each = 0.02
    """What one case took lately, with making it up."""

    def __init__(self, operation: Any, secrets: dict[str, str], objects: dict[str, list[str]]) -> None:
        self.operation, self.objects, self.asked = operation, objects, 0
        requirements = operation.definition.raw.get("security", [])
        scheme = next((name for one in requirements for name in one if name in secrets), None)
        self.headers = {} if scheme is None else {"Authorization": f"Bearer {secrets[scheme]}"}

    def run(self, mode: GenerationMode, session: requests.Session, seconds: float) -> str | None:
        """What was wrong, if anything was."""
        before, begun = self.asked, time.monotonic()
        run = settings(
            max_examples=min(max(int(seconds / Asker.seconds_each), 2), MOST_CASES),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(seed(4)(given(case=self.operation.as_strategy(generation_mode=mode))(lambda case: self._ask(case, session))))
        try:
            run()
        except Unsatisfiable:  # nothing of this operation can be wrong
            return None
        except (Exception, BaseExceptionGroup) as failure:
            parts = failure.exceptions if isinstance(failure, BaseExceptionGroup) else [failure]
            return "\n".join(f"{type(part).__name__}: {str(part)[:1500]}" for part in parts)
        took = (time.monotonic() - begun) / max(self.asked - before, 1)
        Asker.seconds_each = 0.8 * Asker.seconds_each + 0.2 * took
        return None

    def _ask(self, case: Any, session: requests.Session) -> None:
        self.asked += 1
        if self.asked % 2:
            for name in case.path_parameters:
                values = self.objects.get(name)
                if values:
                    case.path_parameters[name] = values[self.asked // 2 % len(values)]
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["stream"] = self.asked % 4 == 1
                case.body["model"] = self.objects["model_id"][0]
        response = case.call(session=session, headers=self.headers, timeout=20)
        case.validate_response(response, checks=CHECKS.get_by_names(list(CHECKED)))


@pytest.mark.slow
def test_no_answer_is_a_surprise(
    gateway: Process, house: House, secrets: dict[str, str], objects: dict[str, list[str]]
) -> None:
    load_all_checks()
    schema = schemathesis.openapi.from_dict(requests.get(f"{gateway.url}/api/openapi.json", timeout=10).json())
    schema.config.update(base_url=gateway.url)
    operations = [operation for operation in ordered(schema) if tell(operation) not in SKIPPED]
    until, failures, unasked = time.monotonic() + SECONDS, [], []
    with requests.Session() as session:
        for place, operation in enumerate(operations):
            seconds = (until - time.monotonic()) / (len(operations) - place)
            asker = Asker(operation, secrets, objects)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                wrong = asker.run(mode, session, seconds / 2)
                failures += [f"{tell(operation)} ({mode.value})\n{wrong}"] if wrong else []
            unasked += [] if asker.asked else [tell(operation)]
    assert not failures, "\n\n".join([f"{len(failures)} operations answer what they should not:", *failures])
    assert unasked == []
