"""What helps is said in the same words by the pages and by the script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import console
from console import denial_words
from console.key_forms import KeyForm

SCRIPT = (Path(console.__file__).parent / "static/console/advice.js").read_text()


@pytest.mark.parametrize("code", ["tenant_suspended", "address_not_allowed"])
def test_the_script_says_what_pages_say(code: str) -> None:
    (said,) = re.findall(rf'^  {code}: "(.*)",$', SCRIPT, re.MULTILINE)
    assert said == denial_words.advice(code, "")


def test_less_may_fit_into_what_is_left_of_a_budget() -> None:
    assert "ask for fewer tokens (max_tokens)" in denial_words.advice("insufficient_quota", "budget_hard")


def test_a_key_s_addresses_are_called_what_its_form_calls_them() -> None:
    label = KeyForm.base_fields["networks"].label
    assert label == "Addresses"
    assert label.lower() in denial_words.advice("address_not_allowed", "")
