"""``operator_token``: what a scraper of workers is given."""

from __future__ import annotations

import json
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from inference.errors import GrantRefused
from inference.grants import GrantVerifier
from tenants.models import AuditEntry


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("operator_token", *arguments, stdout=out)
    return out.getvalue().strip()


@pytest.mark.django_db
def test_a_worker_accepts_it_as_an_operators_and_as_nothing_else(grant_keys: Any) -> None:
    verifier = GrantVerifier.load(grant_keys.public, base="b")
    verifier.check_operator(printed())
    verifier.check_operator(json.loads(printed("--minutes", "5", "--json"))["token"])
    with pytest.raises(GrantRefused):
        verifier.verify(printed())


@pytest.mark.django_db
def test_each_is_in_the_audit_log(grant_keys: Any) -> None:
    made = json.loads(printed("--minutes", "5", "--json"))
    entry = AuditEntry.objects.unscoped().get(action="operator_token.issued")
    assert (entry.tenant, entry.actor_kind, entry.subject) == (None, "command", "workers")
    assert datetime.fromisoformat(entry.after["expires_at"]) == datetime.fromisoformat(made["expires_at"])
    assert made["token"] not in json.dumps(entry.after)


@pytest.mark.parametrize("minutes", ["0", "-1", "1000000"])
def test_how_long_it_may_be_good(minutes: str, grant_keys: Any) -> None:
    with pytest.raises(CommandError, match="--minutes has to be between"):
        printed("--minutes", minutes)
