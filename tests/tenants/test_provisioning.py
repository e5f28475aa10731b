"""Two operators at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from tenants import (
    adapter_quotas,
    batches,
    files,
    invitations,
    key_ring,
    membership,
    operator_keys,
    plans,
    playground,
    provisioning,
    uploads,
)
from tenants.actors import Actor
from tenants.callers import Caller, Role
from tenants.errors import Conflict, Invalid, NotFound, TenantsError
from tenants.limits import set_limits
from tenants.models import ApiKey, AuditEntry, Invitation, Member, Plan, Tenant

ACTOR = Actor("operator", "tests")


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each came to: its result, or the error it raised."""
    start, results = threading.Barrier(len(works)), []

    def run(work: Callable[[], Any]) -> None:
        start.wait()
        try:
            results.append(work())
        except TenantsError as error:
            results.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("round", range(3))
def test_of_many_creations_of_one_slug_one_happens(transactional_db: None, round: int) -> None:
    Plan.standard()
    results = at_once(*[lambda: provisioning.create(ACTOR, "acme")] * 8)
    assert sum(isinstance(result, Tenant) for result in results) == 1
    assert {result.code for result in results if isinstance(result, Conflict)} == {"name_taken"}
    assert AuditEntry.objects.filter(tenant__slug="acme").count() == 1


def test_of_many_creations_of_one_plan_one_happens(transactional_db: None) -> None:
    results = at_once(*[lambda: plans.create(ACTOR, "small", {"max_concurrent": 1})] * 8)
    assert sum(isinstance(result, Plan) for result in results) == 1


def test_of_many_operator_keys_of_one_name_one_is_made(transactional_db: None) -> None:
    results = at_once(*[lambda: operator_keys.issue(ACTOR, "ci")] * 8)
    assert sum(isinstance(result, tuple) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 7


@pytest.mark.parametrize("verb", ["delete", "change", "suspend", "limits"])
def test_what_was_deleted_meanwhile_is_not_found(transactional_db: None, verb: str) -> None:
    """Not a server's error: whoever found the row did so before."""
    tenant = provisioning.create(ACTOR, "acme")
    found = [Tenant.objects.get(pk=tenant.pk) for _ in range(6)]
    works = {
        "delete": provisioning.delete,
        "change": lambda actor, row: provisioning.change(actor, row, display_name="New"),
        "suspend": provisioning.suspend,
        "limits": lambda actor, row: set_limits(actor, row, {"max_concurrent": 3}),
    }
    provisioning.delete(ACTOR, tenant)
    results = at_once(*[lambda row=row: works[verb](ACTOR, row) for row in found])
    assert [type(result) for result in results] == [NotFound] * 6


ADDING: dict[str, Callable[[Tenant, Caller, Path], Any]] = {
    "key": lambda tenant, caller, path: key_ring.issue(caller, key_ring.Wanted()),
    "playground key": lambda tenant, caller, path: playground.ready(caller),
    "invitation": lambda tenant, caller, path: invitations.invite(ACTOR, tenant, "bo@x.example", Member.Role.OWNER),
    "file": lambda tenant, caller, path: files.receive(ACTOR, tenant, path, "in.jsonl", files.KEPT),
    "batch": lambda tenant, caller, path: batches.create(
        ACTOR, caller.key, input_file_id="file-1", endpoint="/v1/completions"
    ),
    "upload": lambda tenant, caller, path: uploads.create(
        ACTOR, tenant, name="pirate", files=[uploads.Declared("adapter.tar", 9, "0" * 64)]
    ),
    "quota": lambda tenant, caller, path: adapter_quotas.change(ACTOR, tenant, {"max_adapters": 1}),
    "role": lambda tenant, caller, path: membership.change_role(ACTOR, caller.member, Member.Role.VIEWER),
}


@pytest.mark.parametrize("what", ADDING)
def test_nothing_is_added_to_what_was_deleted_meanwhile(transactional_db: None, tmp_path: Path, what: str) -> None:
    found = provisioning.create(ACTOR, "acme")
    user = get_user_model().objects.create_user("ada")
    member = Member.objects.create(tenant=found, user=user, role=Member.Role.OWNER)
    key, _ = ApiKey.issue(found)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")
    provisioning.delete(ACTOR, Tenant.objects.get())
    with pytest.raises(NotFound):
        ADDING[what](found, Caller("ada", found, Role.OWNER, ACTOR, member, key, user), path)


def test_an_invitation_of_a_deleted_account_is_not_found(transactional_db: None) -> None:
    invitation = Invitation(tenant=provisioning.create(ACTOR, "acme"), email="bo@x.example", digest=b"")
    with pytest.raises(NotFound):
        invitations.revoke_invitation(ACTOR, invitation)


def test_of_many_deletions_of_a_plan_one_happens(transactional_db: None) -> None:
    plan = plans.create(ACTOR, "small", {})
    found = [Plan.objects.get(pk=plan.pk) for _ in range(6)]
    results = at_once(*[lambda row=row: plans.delete(ACTOR, row) for row in found])
    assert sorted(type(result).__name__ for result in results) == ["NoneType"] + ["NotFound"] * 5
    assert AuditEntry.objects.unscoped().filter(action="plan.deleted").count() == 1


def test_a_name_is_on_one_line(db: None) -> None:
    """Or the platform would write a tenant's words into its own mails."""
    forged = "Acme.\n\nYour account was charged 499 USD."
    with pytest.raises(Invalid) as refused:
        provisioning.create(ACTOR, "acme", display_name=forged)
    assert refused.value.param == "display_name"
    tenant = provisioning.create(ACTOR, "acme")
    with pytest.raises(Invalid):
        provisioning.change(ACTOR, tenant, display_name=forged)


def test_two_budgets_set_at_once_cannot_pass_each_other(transactional_db: None) -> None:
    tenant = provisioning.create(ACTOR, "acme", limits={"budget_soft": 5, "budget_hard": 10})
    for _ in range(5):
        Tenant.objects.update(budget_soft=5, budget_hard=10)
        at_once(
            lambda: set_limits(ACTOR, Tenant.objects.get(), {"budget_soft": 9}),
            lambda: set_limits(ACTOR, Tenant.objects.get(), {"budget_hard": 6}),
        )
        tenant.refresh_from_db()
        assert tenant.budget_soft is not None
        assert tenant.budget_hard is not None
        assert tenant.budget_soft <= tenant.budget_hard


def test_whoever_suspends_second_changes_nothing(transactional_db: None) -> None:
    provisioning.create(ACTOR, "acme")
    at_once(*[lambda: provisioning.suspend(ACTOR, Tenant.objects.get())] * 4)
    assert AuditEntry.objects.filter(tenant__slug="acme", action="tenant.suspended").count() == 1
