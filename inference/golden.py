"""Golden prompts: what a model makes of a few fixed token sequences, and how far two models' answers lie apart.

An uploader may send ``golden.json`` with an adapter: what transformers and PEFT computed with it. ``python -m
inference.reference`` writes one::

    {"base_fingerprint": "<hex sha256>",            optional: the base model that it was computed on
     "made_by": "peft 0.21.2, …",                   optional, for people
     "prompts": [{"token_ids": [1, 9906, …],        2 to 512 ids, 1 to 16 prompts
                  "adapter": {"logprobs": [-1.2, …],          of each token from the second on
                              "following": [[17, -0.3], …]},  the most likely next tokens, 1 to 10
                  "base": {…}}]}                              optional: the same without the adapter

Log-probabilities are natural logarithms of the model's own distribution. Torch-free: the control plane compares, it
does not compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from inference.errors import AdapterInvalid, InvalidRequest
from inference.prompt import PromptRenderer
from inference.safetensors_header import load_json

GOLDEN_FILE = "golden.json"
MAX_BYTES = 256 << 10
MAX_PROMPTS = 16
MAX_PROMPT_TOKENS = 512
MAX_FOLLOWING = 10

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three prime numbers.",
    "Explain what a neural network is, to a child.",
)
"""What an adapter is tried on when nobody sent anything else."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model makes of one prompt.

    :param logprobs: natural logarithm of the probability of each token from the second on.
    :param following: the most likely next tokens, each with its own.
    """

    logprobs: tuple[float, ...]
    following: tuple[tuple[int, float], ...]

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, (*self.logprobs, *(value for _, value in self.following))))

    @property
    def flat(self) -> bool:
        """Whether the next tokens are all equally likely: what remains of numbers that overflowed on the way."""
        values = [value for _, value in self.following]
        return len(values) > 1 and max(values) == min(values)

    def json(self) -> dict[str, Any]:
        return {"logprobs": list(self.logprobs), "following": [list(pair) for pair in self.following]}


@dataclass(frozen=True, slots=True)
class GoldenPrompt:
    token_ids: tuple[int, ...]
    adapter: Scores
    base: Scores | None


@dataclass(frozen=True, slots=True)
class Golden:
    prompts: tuple[GoldenPrompt, ...]
    base_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Distance:
    """Absolute differences of log-probabilities, in nats."""

    mean: float
    most: float


def distance(expected: Sequence[Scores], found: Sequence[Scores]) -> Distance:
    """How far ``found`` lies from ``expected``, prompt by prompt over the same tokens.

    A next token that ``found`` does not list counts as its least likely one: at least that far away.
    """
    gaps: list[float] = []
    for one, other in zip(expected, found, strict=True):
        gaps += [abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)]
        listed = dict(other.following)
        least = min(listed.values(), default=0.0)
        gaps += [abs(value - listed.get(token, least)) for token, value in one.following]
    return Distance(sum(gaps) / len(gaps), max(gaps))


def default_prompts(renderer: PromptRenderer) -> list[list[int]]:
    """:data:`QUESTIONS` as the model's own chat template puts them; as plain texts where it has none."""
    most = min(MAX_PROMPT_TOKENS, renderer.context_length // 2)
    prompts = []
    for question in QUESTIONS:
        try:
            ids = renderer.encode_chat([{"role": "user", "content": question}])
        except InvalidRequest:
            ids = renderer.encode(question, add_special_tokens=True)
        prompts.append(ids[-most:])
    return prompts


def parse_golden(data: bytes) -> Golden:
    """Read ``golden.json``. Raises :class:`~inference.errors.AdapterInvalid` naming the place."""
    if len(data) > MAX_BYTES:
        raise AdapterInvalid(f"{GOLDEN_FILE} has {len(data)} bytes; at most {MAX_BYTES} are accepted", GOLDEN_FILE)
    return golden_of(load_json(data, GOLDEN_FILE))


def golden_of(value: dict[str, Any]) -> Golden:
    """As :func:`parse_golden`, of the JSON object itself."""
    fields = _object(value, "", required={"prompts"}, optional={"base_fingerprint", "made_by"})
    fingerprint = fields.get("base_fingerprint")
    if fingerprint is not None and not (isinstance(fingerprint, str) and len(fingerprint) == 64):
        _refuse("base_fingerprint", "has to be a hex sha256")
    if not isinstance(fields.get("made_by", ""), str):
        _refuse("made_by", "has to be a text")
    prompts = _list(fields["prompts"], "prompts", 1, MAX_PROMPTS)
    return Golden(tuple(_prompt(item, f"prompts[{n}]") for n, item in enumerate(prompts)), fingerprint)


def _prompt(value: object, where: str) -> GoldenPrompt:
    fields = _object(value, where, required={"token_ids", "adapter"}, optional={"base"})
    ids = tuple(_id(item, f"{where}.token_ids") for item in _list(fields["token_ids"], f"{where}.token_ids", 2, 512))
    base = None if fields.get("base") is None else _scores(fields["base"], f"{where}.base", len(ids))
    return GoldenPrompt(ids, _scores(fields["adapter"], f"{where}.adapter", len(ids)), base)


def _scores(value: object, where: str, length: int) -> Scores:
    fields = _object(value, where, required={"logprobs", "following"})
    logprobs = _list(fields["logprobs"], f"{where}.logprobs", length - 1, length - 1)
    pairs = []
    for item in _list(fields["following"], f"{where}.following", 1, MAX_FOLLOWING):
        token, logprob = _list(item, f"{where}.following", 2, 2)
        pairs.append((_id(token, f"{where}.following"), _logprob(logprob, f"{where}.following")))
    return Scores(tuple(_logprob(item, f"{where}.logprobs") for item in logprobs), tuple(pairs))


def _object(
    value: object, where: str, *, required: set[str], optional: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, "has to be an object")
    for name in sorted(required - value.keys()):
        _refuse(f"{where}.{name}".lstrip("."), "is missing")
    for name in sorted(value.keys() - required - optional):
        _refuse(f"{where}.{name}".lstrip("."), "is not known")
    return value


def _list(value: object, where: str, least: int, most: int) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        _refuse(where, f"has to be a list of {least}" + (f" to {most}" if most > least else ""))
    return value


def _id(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        _refuse(where, "holds something that is no token id")
    return value


def _logprob(value: object, where: str) -> float:
    if type(value) not in (int, float) or not -1e4 <= value <= 1e-3:  # type: ignore[operator]
        _refuse(where, "holds something that is no log-probability")
    return float(value)  # type: ignore[arg-type]


def _refuse(where: str, what: str) -> NoReturn:
    raise AdapterInvalid(f"{GOLDEN_FILE}: {where or 'the whole'} {what}"[:300], GOLDEN_FILE)
