"""What single fields of a request may be: one table for the worker and the gateway, so that they cannot differ.

Each check returns the value as the worker uses it or raises :class:`InvalidRequest`, whose message begins with the
field's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidRequest
from inference.protocol import MAX_CHOICES, MAX_LOGPROBS

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024
MAX_TOKENS = (1 << 31) - 1
_END_OF_IDS = 1 << 31
_TOKEN_ID = re.compile(r"(0|[1-9][0-9]*)\Z")
Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Number:
    """From ``low`` (or just above it, ``open_low``) to ``high``."""

    low: float
    high: float
    open_low: bool = False

    def __call__(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidRequest(f"{name} must be a number", name)
        if not self.low <= value <= self.high or (self.open_low and value == self.low):
            least = f"{'above' if self.open_low else 'at least'} {self.low:g}"
            raise InvalidRequest(f"{name} must be {least} and at most {self.high:g}", name)
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum" if self.open_low else "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int

    def __call__(self, name: str, value: Any) -> int:
        # JSON's integers beyond 64 bits arrive as floats: the range tells more than the type.
        if type(value) is not int or not self.low <= value <= self.high:
            raise InvalidRequest(
                f"{name} must be an integer between {_written(self.low)} and {_written(self.high)}", name
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


def _written(bound: int) -> str:
    """``2**63 - 1`` instead of its nineteen digits."""
    if bound > 1 << 20 and bound & (bound + 1) == 0:
        return f"2**{bound.bit_length()} - 1"
    if abs(bound) > 1 << 20 and abs(bound) & (abs(bound) - 1) == 0:
        return f"{'-' if bound < 0 else ''}2**{abs(bound).bit_length() - 1}"
    return str(bound)


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false", name)
    return value


def top_k(name: str, value: Any) -> int:
    """−1 and 0 both keep every token."""
    return max(0, Integer(-1, 1 << 30)(name, value))


def stop(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{name} must be text or a list of at most {MAX_STOPS} texts", name)
    for each in stops:
        if not isinstance(each, str) or not 0 < len(each) <= MAX_STOP_CHARACTERS:
            raise InvalidRequest(f"{name}: each must be text of 1 to {MAX_STOP_CHARACTERS} characters", name)
    return tuple(stops)


def token_ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list of token ids", name)
    kinds = list(map(type, value))  # of a million ids; each by itself would take three times as long
    others = set(kinds) - {int}
    if others:
        wrong = value[min(map(kinds.index, others))]
    elif value and (min(value) < 0 or max(value) >= _END_OF_IDS):
        wrong = min(value) if min(value) < 0 else max(value)
    else:
        return value
    shown = "a list or an object" if isinstance(wrong, dict | list) else str(wrong)[:64]
    raise InvalidRequest(f"{name}: token ids are integers of at least 0, unlike {shown}", name)


def stop_token_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and len(value) > MAX_STOP_TOKENS:
        raise InvalidRequest(f"{name} must be a list of at most {MAX_STOP_TOKENS} token ids", name)
    return tuple(token_ids(name, value))


def logit_bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise InvalidRequest(f"{name} must be an object of at most {MAX_BIASES} tokens", name)
    bias = {}
    for token, amount in value.items():
        # "01" would be a second name for 1: which of the two biases counts?
        if not (isinstance(token, str) and len(token) < 10 and _TOKEN_ID.match(token)):
            raise InvalidRequest(f"{name}: {str(token)[:32]!r} is not a token id", name)
        try:
            bias[int(token)] = Number(-100, 100)(name, amount)
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}: the bias of {token} must lie between -100 and 100", name) from error
    return bias


def prompt(name: str, value: Any) -> str | list[int]:
    """Text or token ids, not empty; a batch of one is its only prompt."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        raise InvalidRequest(f"{name}: more than one prompt in a request is not supported", name)
    if not isinstance(value, str | list):
        raise InvalidRequest(f"{name} must be text or a list of token ids", name)
    if not value:
        raise InvalidRequest(f"{name} must not be empty", name)
    return value if isinstance(value, str) else token_ids(name, value)


SAMPLING: dict[str, Check] = {
    "temperature": Number(0, 2),
    "top_p": Number(0, 1, open_low=True),
    "top_k": top_k,
    "min_p": Number(0, 1),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "repetition_penalty": Number(0.01, 10),
    "logit_bias": logit_bias,
    "seed": Integer(-(1 << 63), (1 << 63) - 1),
    "stop": stop,
    "stop_token_ids": stop_token_ids,
    "ignore_eos": boolean,
    "min_tokens": Integer(0, 1 << 30),
}
"""How tokens are chosen; names and meanings are those of :class:`~inference.protocol.SamplingParams`."""

COUNTS: dict[str, Integer] = {
    "max_tokens": Integer(1, MAX_TOKENS),
    "max_completion_tokens": Integer(1, MAX_TOKENS),
    "n": Integer(1, MAX_CHOICES),
    "best_of": Integer(1, MAX_CHOICES),
    "prompt_logprobs": Integer(0, MAX_LOGPROBS),
    "top_logprobs": Integer(0, MAX_LOGPROBS),
}
COMPLETION_COUNTS: dict[str, Integer] = {"max_tokens": Integer(0, MAX_TOKENS), "logprobs": Integer(0, MAX_LOGPROBS)}
"""As text completions have them."""
