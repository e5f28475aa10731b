"""Words for what ``tenants/sql/admit.sql`` refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenants.errors import Denied, ModelNotFound
from tenants.limit_state import LimitState

_WHOSE = {"tenant": "your", "member": "this member's", "key": "this API key's"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for, in the client's own terms. ``max_tokens``: of each choice."""

    model: str
    prompt_tokens: int
    max_tokens: int | None
    choices: int

    @property
    def output(self) -> str:
        if self.max_tokens is None:
            return f"at least {self.choices}"
        return str(self.max_tokens) if self.choices == 1 else f"{self.choices} × {self.max_tokens}"


def denied(verdict: dict[str, Any], wanted: Wanted) -> Denied:
    """The error for a verdict with a ``code``."""
    code = verdict["code"]
    match code:
        case "key_revoked":
            return Denied(code, "Incorrect API key provided.")
        case "tenant_suspended":
            return Denied(code, "This account is suspended.")
        case "model_not_found":
            return Denied(code, str(ModelNotFound(wanted.model)), param="model")
    wait = verdict["retry_after_us"]
    if code == "concurrency_limit_exceeded":
        wait = 1_000_000  # nobody knows when a running request ends
    retry_after = None if wait is None else wait / 1e6
    words = _of_the_request(verdict, wanted) if code in _PARAM else _of_a_limit(verdict, wanted, retry_after)
    return Denied(
        code,
        words,
        limit=verdict["limit_name"],
        subject=verdict["subject"],
        remaining=verdict["limit_left"],
        param=_PARAM.get(code),
        retry_after=retry_after,
        limits=LimitState.of(verdict),
    )


_PARAM = {"context_length_exceeded": "messages", "max_output_tokens_exceeded": "max_tokens"}


def _of_the_request(verdict: dict[str, Any], wanted: Wanted) -> str:
    """The request is too large, whenever it comes."""
    name, value, whose = verdict["limit_name"], verdict["limit_value"], _WHOSE.get(verdict["subject"])
    match name:
        case "max_input_tokens":
            return f"The prompt has {wanted.prompt_tokens} tokens; {whose} limit {name} is {value}."
        case "max_output_tokens":
            return f"max_tokens is {wanted.output}; {whose} limit {name} is {value}."
        case _:
            asked = "" if wanted.max_tokens is None else f" and max_tokens asks for {wanted.max_tokens}"
            return f"The model's context is {value} tokens, but the prompt has {wanted.prompt_tokens}{asked}."


def _of_a_limit(verdict: dict[str, Any], wanted: Wanted, retry_after: float | None) -> str:
    """Something is used up."""
    name, value, left = verdict["limit_name"], verdict["limit_value"], verdict["limit_left"]
    whose = _WHOSE[verdict["subject"]]
    again = "" if retry_after is None else f"; try again in {retry_after:.3f} s"
    asks = f"The request asks for {wanted.prompt_tokens} + {wanted.output} tokens"
    match name:
        case "max_concurrent":
            running = "1 request is" if value == 1 else f"{value} requests are"
            return f"{running} running already, which is {whose} limit {name}."
        case "budget_hard":
            rest = f"{left} of {value} micro-units a month"
            return f"{asks}, which cost more than is left of {whose} limit {name}: {rest}."
        case "requests_per_minute":
            return f"{whose[0].upper()}{whose[1:]} limit {name} of {value} is used up{again}."
        case "tokens_per_minute" if retry_after is None:
            return f"{asks}; {whose} limit {name} of {value} never allows so many at once."
        case "tokens_per_minute":
            return f"{asks}; {left} of {whose} limit {name} of {value} are left{again}."
        case _:
            return f"{asks}; {left} of {whose} limit {name} of {value} are left."
