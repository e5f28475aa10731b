"""The nouns that processes share: grants, sampling parameters, and what a running request reports.

Torch-free and Django-free, so that the gateway, the worker's front and the worker's core can all import it.
Processes share these dataclasses; they do not share helpers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

GRANT_ISSUER = "loraplex"
GENERATE_AUDIENCE = "loraplex-worker"
OPERATOR_AUDIENCE = "loraplex-worker-operator"
GRANT_ALGORITHM = "EdDSA"

MAX_CHOICES = 16
MAX_LOGPROBS = 20
"""Most likely tokens shown beside each one."""

MAX_PROMPT_LOGPROBS = 65_536
"""Numbers that one prompt may be answered with: they leave in one event, of some megabytes."""

MAX_ANSWER_LOGPROBS = 1 << 20
"""As many for all tokens that one request may generate: each costs its client a step, so it may be more."""

MAX_MILLISECONDS = 1 << 31

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Grant:
    """What the control plane allows one request to do; signed by the gateway, verified again by the worker.

    Travels as an Ed25519 JWT in ``Authorization: Bearer``. The worker holds only the public key and refuses a request
    whose body disagrees with any field. ``namespace`` is the root of the prefix cache: nothing a client sends reaches
    it.

    :param request_id: UUIDv7, canonical text. A worker accepts each id once while the grant lives (no replay).
    :param tenant: stable tenant id, used for fairness and accounting only.
    :param namespace: isolation domain of cached KV blocks.
    :param base: fingerprint of the base model (hex sha256).
    :param adapter: content digest of the adapter (hex sha256), or ``None`` for the base model alone.
    :param max_input: most prompt tokens.
    :param max_output: most generated tokens, over all choices together.
    :param priority: lower runs first (vLLM's sign); 0 is normal.
    :param weight: fair-share weight of the tenant, ≥ 1.
    :param expires_at: Unix seconds by which the request has to *start*.
    """

    request_id: str
    tenant: str
    namespace: str
    base: str
    adapter: str | None
    max_input: int
    max_output: int
    priority: int
    weight: int
    expires_at: int

    def claims(self) -> dict[str, Any]:
        """JWT claims; :meth:`from_claims` is the inverse."""
        return {
            "iss": GRANT_ISSUER,
            "aud": GENERATE_AUDIENCE,
            "jti": self.request_id,
            "exp": self.expires_at,
            "tenant": self.tenant,
            "ns": self.namespace,
            "base": self.base,
            "adapter": self.adapter,
            "max_in": self.max_input,
            "max_out": self.max_output,
            "prio": self.priority,
            "weight": self.weight,
        }

    @classmethod
    def from_claims(cls, claims: dict[str, Any]) -> Grant:
        """Raises ``KeyError`` or ``TypeError`` when a claim is missing or of the wrong type."""
        text = {name: claims[name] for name in ("jti", "tenant", "ns", "base")}
        number = {name: claims[name] for name in ("exp", "max_in", "max_out", "prio", "weight")}
        adapter = claims["adapter"]
        if not all(isinstance(value, str) and value for value in text.values()):
            raise TypeError("a text claim is empty or not text")
        if not all(type(value) is int for value in number.values()):
            raise TypeError("a number claim is not an integer")
        if adapter is not None and not (isinstance(adapter, str) and adapter):
            raise TypeError("the adapter claim is neither null nor text")
        return cls(
            request_id=text["jti"],
            tenant=text["tenant"],
            namespace=text["ns"],
            base=text["base"],
            adapter=adapter,
            max_input=number["max_in"],
            max_output=number["max_out"],
            priority=number["prio"],
            weight=number["weight"],
            expires_at=number["exp"],
        )


ConstraintKind = Literal["json_object", "json_schema", "regex", "grammar", "choice"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the generated text has to belong to.

    :param source: the JSON schema, the regular expression, the grammar (Lark) or a JSON list of choices; empty for
        ``json_object``.
    :param field: what the client called it; errors name it.
    """

    kind: ConstraintKind
    source: str = ""
    field: str = "response_format"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability under the model's own distribution (before temperature and cuts).

    :param top: the most likely tokens at this place with theirs, best first; as many as were asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    def wire(self) -> list[Any]:
        return [self.token, self.logprob, self.top]

    @classmethod
    def from_wire(cls, data: list[Any]) -> TokenLogprob:
        token, logprob, top = data
        return cls(token, logprob, tuple((other, value) for other, value in top))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Defaults are OpenAI's where OpenAI has the parameter, vLLM's elsewhere.

    :param max_tokens: most tokens to generate, ≥ 1.
    :param temperature: 0 is greedy (arg-max; ties go to the lowest token id).
    :param top_p: nucleus mass in (0, 1].
    :param top_k: 0 keeps all.
    :param min_p: least probability relative to the most likely token, in [0, 1).
    :param seed: fixes the random stream of this request, whatever shares its batch; ``None`` draws one.
    :param stop: strings that end the text; never part of it.
    :param stop_token_ids: tokens that end the text, beside the model's own end tokens.
    :param ignore_eos: the model's own end tokens do not stop the request.
    :param min_tokens: end tokens cannot be chosen before this many tokens, and stop strings end nothing until there is
        one more.
    :param logprobs: report each generated token's log-probability, with this many of the most likely beside it;
        ``None`` reports nothing.
    :param prompt_logprobs: the same for the prompt's tokens from the second on.
    :param constraint: what the text has to conform to; ``None`` leaves it free.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None

    @property
    def penalises(self) -> bool:
        """Whether the next token's choice depends on which tokens came before, beside what the model makes of them."""
        return self.repetition_penalty != 1.0 or bool(self.presence_penalty or self.frequency_penalty)

    def wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> SamplingParams:
        values = dict(data)
        values["stop"] = tuple(values["stop"])
        values["stop_token_ids"] = tuple(values["stop_token_ids"])
        if values["constraint"] is not None:
            values["constraint"] = Constraint(**values["constraint"])
        values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    ``prompt_tokens`` includes ``cached_tokens``, those read from the request's own namespace.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def openai(self) -> dict[str, Any]:
        """OpenAI's ``usage`` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class WorkerTimings:
    """Where a request's time at its worker went, in milliseconds: waiting for its first step, computing up to the first
    token, and from there to the last one so far. On the wire: ``loraplex`` in the first event of a stream, beside
    ``cached_tokens``, and in the event that has the usage.
    """

    queue_ms: float
    prefill_ms: float
    decode_ms: float

    def wire(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in asdict(self).items()}

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> WorkerTimings:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything but durations."""
        found = cls(float(data["queue_ms"]), float(data["prefill_ms"]), float(data["decode_ms"]))
        if not all(0 <= value < MAX_MILLISECONDS for value in (found.queue_ms, found.prefill_ms, found.decode_ms)):
            raise ValueError("no duration")
        return found


@dataclass(frozen=True, slots=True)
class Delta:
    """What a stream gained since the last delta of the same choice.

    ``text`` may be empty while ``token_ids`` is not (half a UTF-8 character, a possible stop string). The last delta of
    a choice carries ``finish_reason``; the last delta of a request carries ``usage``. ``logprobs`` come with the text
    of their tokens, without those that a stop string cut off; ``offsets`` say where in the choice's text each of them
    begins, in characters. ``prompt_logprobs`` come once, with the first delta, if they were asked for.
    ``fingerprint`` is what the worker says of itself (``system_fingerprint``), where it came from one. ``timings`` come
    with the first delta and with the usage, ``cached_tokens`` (as in :class:`Usage`) with the first, from workers that
    tell: who leaves in mid-stream never sees the usage.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    offsets: tuple[int, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    fingerprint: str | None = None
    timings: WorkerTimings | None = None
    cached_tokens: int | None = None


def joined(deltas: Sequence[Delta]) -> Delta:
    """All deltas of one choice as one."""
    whole = Delta("".join(delta.text for delta in deltas))
    scored = [delta for delta in deltas if delta.logprobs is not None]
    return replace(
        whole,
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=next((delta.finish_reason for delta in reversed(deltas) if delta.finish_reason), None),
        usage=next((delta.usage for delta in reversed(deltas) if delta.usage), None),
        index=deltas[0].index if deltas else 0,
        logprobs=tuple(entry for delta in scored for entry in delta.logprobs or ()) if scored else None,
        offsets=tuple(offset for delta in scored for offset in delta.offsets or ()) if scored else None,
        prompt_logprobs=next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None), None),
        fingerprint=deltas[0].fingerprint if deltas else None,
    )
