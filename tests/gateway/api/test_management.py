"""What every endpoint of the management API has in common: whose key opens it, pages, mutations that happen once."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError
from django.test import RequestFactory
from django.utils import timezone
from pydantic import BaseModel, Field

from gateway.api.mutations import HEADER, ONCE, REPLAYED, _once
from gateway.errors import ApiError
from tenants import audit
from tenants.actors import Actor
from tenants.callers import Caller as TenantCaller
from tenants.callers import Role
from tenants.errors import Conflict
from tenants.keys import generate
from tenants.models import IdempotentRequest, Plan, Tenant
from tests.gateway.api.conftest import Caller, Make

ACTOR = Actor("command", "tests", "192.0.2.7")


def error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.content
    found = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


# Keys -----------------------------------------------------------------------------------------------------------------


def test_only_a_manage_key_of_an_active_tenant_opens_the_api(caller: Make, tenant: Tenant) -> None:
    assert caller().get("/api/audit").status_code == 200
    inference = caller(scope="inference")
    assert "scope manage" in error(inference.get("/api/audit"), 403)["message"]
    past = timezone.now() - timedelta(seconds=1)
    for wrong in (caller(expires_at=past), caller(revoked_at=past), Caller(tenant, generate().secret.reveal())):
        assert error(wrong.get("/api/audit"), 401)["code"] == "invalid_api_key"
    good = caller()
    Tenant.objects.filter(pk=tenant.pk).update(state="suspended")
    assert error(good.get("/api/audit"), 403)["code"] == "tenant_suspended"


def test_neither_kind_of_key_is_the_other(caller: Make, operator: Caller) -> None:
    assert error(operator.get("/api/audit"), 401)["code"] == "invalid_api_key"


def test_a_members_key_has_the_members_role(caller: Make) -> None:
    assert caller("owner").get("/api/audit").status_code == 200
    for role in ("developer", "viewer"):
        assert error(caller(role).get("/api/audit"), 403)["code"] == "permission_denied"


# Audit and pages ------------------------------------------------------------------------------------------------------


def entries(tenant: Tenant, count: int) -> list[str]:
    return [str(audit.record(ACTOR, "thing.made", f"thing {n}", tenant=tenant).pk) for n in range(count)]


def test_pages_give_everything_once_newest_first(caller: Make, tenant: Tenant) -> None:
    made, asking = entries(tenant, 7), caller()
    found: list[str] = []
    path = "/api/audit?limit=3"
    for _ in range(3):
        answer = asking.get(path).json()
        found += [entry["id"] for entry in answer["data"]]
        assert (answer["object"], answer["first_id"], answer["last_id"]) == (
            "list",
            *[found[-len(answer["data"])], found[-1]],
        )
        path = f"/api/audit?limit=3&after={answer['last_id']}"
    assert found == made[::-1]
    assert answer["has_more"] is False


def test_a_page_after_anything_but_an_id_of_the_list_is_refused(caller: Make, tenant: Tenant, stranger: Caller) -> None:
    assert stranger.tenant is not None
    (theirs,) = entries(stranger.tenant, 1)
    for after in (theirs, str(uuid4()), "x", "%00", "1"):
        assert error(caller().get(f"/api/audit?after={after}"), 400)["param"] == "after"
    for limit in ("0", "101", "x"):
        assert error(caller().get(f"/api/audit?limit={limit}"), 400)["param"] == "limit"


def test_a_stranger_sees_nothing(tenant: Tenant, stranger: Caller) -> None:
    entries(tenant, 2)
    assert stranger.get("/api/audit").json()["data"] == []


def test_an_entry_keeps_what_differs_and_no_secret(tenant: Tenant) -> None:
    before, after = {"name": "a", "limit": 3, "at": timezone.now()}, {"name": "a", "limit": 4, "at": timezone.now()}
    entry = audit.record(ACTOR, "key.changed", "k", tenant=tenant, before=before, after=after)
    assert (entry.before["limit"], entry.after["limit"], "name" in entry.before) == (3, 4, False)
    with pytest.raises(TypeError, match="secret"):
        audit.record(ACTOR, "key.issued", "k", tenant=tenant, after={"api_key": generate().secret})


@pytest.mark.parametrize(
    "change",
    ["UPDATE tenants_auditentry SET action = 'x'", "DELETE FROM tenants_auditentry", "TRUNCATE tenants_auditentry"],
)
def test_the_log_is_append_only(tenant: Tenant, change: str) -> None:
    entries(tenant, 1)
    connection.check_constraints()  # foreign keys first, so that only the trigger is left to refuse
    with pytest.raises(DatabaseError, match="audit log"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)


# Mutations ------------------------------------------------------------------------------------------------------------


class Made(BaseModel):
    id: int
    secret: str | None = Field(json_schema_extra=ONCE)


def send(view: Any, key: str | None, body: bytes = b"{}", name: str = "key:1", tenant: Tenant | None = None) -> Any:
    headers = {} if key is None else {HEADER: key}
    request = RequestFactory().post("/api/things", body, content_type="application/json", headers=headers)
    request.auth = TenantCaller(name, tenant or Tenant(), Role.OWNER, ACTOR)
    return _once(view)(request)


@pytest.fixture
def make(tenant: Tenant) -> Any:
    def view(request: Any) -> tuple[int, Made]:
        plan = Plan.objects.create(name=uuid4().hex)
        return 201, Made(id=plan.pk, secret="only now")

    return view


def test_a_repeated_mutation_answers_alike_and_happens_once(make: Any) -> None:
    status, first = send(make, "again")
    count = Plan.objects.count()
    second = send(make, "again")
    assert (status, second.status_code, second[REPLAYED]) == (201, 201, "true")
    assert second.content == Made(id=first.id, secret=None).model_dump_json().encode()
    assert Plan.objects.count() == count
    assert b"only now" not in bytes(IdempotentRequest.objects.get().body)


def test_another_caller_has_keys_of_its_own_and_no_key_means_every_time(make: Any) -> None:
    assert send(make, "k")[1].id != send(make, "k", name="key:2")[1].id
    assert send(make, None)[1].id != send(make, None)[1].id


def test_a_key_is_good_for_one_request(make: Any) -> None:
    send(make, "k")
    with pytest.raises(Conflict) as reused:
        send(make, "k", b'{"other": 1}')
    assert (reused.value.param, reused.value.code) == (HEADER, "idempotency_key_reused")
    for key in ("", "x" * 256, "a\u00e9", "a\tb"):
        with pytest.raises(ApiError) as refused:
            send(make, key)
        assert refused.value.param == HEADER


def test_what_failed_can_be_tried_again_with_the_same_key(make: Any) -> None:
    def fail(request: Any) -> None:
        Plan.objects.create(name="half")
        raise ApiError(400, "x", "x")

    with pytest.raises(ApiError):
        send(fail, "k")
    assert not Plan.objects.filter(name="half").exists()
    assert send(make, "k")[0] == 201


@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_happens_and_the_other_gets_its_answer() -> None:
    both, answers = threading.Barrier(2), []

    def view(request: Any) -> tuple[int, Made]:
        plan = Plan.objects.create(name=uuid4().hex)
        return 201, Made(id=plan.pk, secret=None)

    def ask() -> None:
        both.wait()
        answers.append(send(view, "k"))
        connection.close()

    before = Plan.objects.count()
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Plan.objects.count() == before + 1
    assert sorted(isinstance(answer, tuple) for answer in answers) == [False, True]
