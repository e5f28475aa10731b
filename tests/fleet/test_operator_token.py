"""``operator_token``: what a scraper of workers is given."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from inference.errors import GrantRefused
from inference.grants import GrantVerifier


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("operator_token", *arguments, stdout=out)
    return out.getvalue().strip()


def test_a_worker_accepts_it_as_an_operators_and_as_nothing_else(grant_keys: Any) -> None:
    verifier = GrantVerifier.load(grant_keys.public, base="b")
    verifier.check_operator(printed())
    verifier.check_operator(json.loads(printed("--minutes", "5", "--json"))["token"])
    with pytest.raises(GrantRefused):
        verifier.verify(printed())


@pytest.mark.parametrize("minutes", ["0", "-1", "1000000"])
def test_how_long_it_may_be_good(minutes: str, grant_keys: Any) -> None:
    with pytest.raises(CommandError, match="--minutes has to be between"):
        printed("--minutes", minutes)
