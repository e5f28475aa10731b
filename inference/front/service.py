"""What the endpoints share: the core, the verifier, the renderer, and who may ask for what."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
from starlette.requests import ClientDisconnect, Request

from inference.core.messages import Submit
from inference.errors import AdapterNotFound, GrantRefused
from inference.front.bodies import GenerateBody, check_scores, most_scored_tokens, sampling_params
from inference.front.choices import Choices, choice_seed
from inference.front.core_link import NO_SLOTS, CoreLink
from inference.front.errors import ApiError
from inference.front.field_checks import invalid
from inference.front.generation import Generation
from inference.front.metrics import FrontMetrics
from inference.grants import GrantVerifier, check_agreement
from inference.prompt import PromptRenderer
from inference.protocol import Grant
from inference.versions import EngineVersion

BODY_SECONDS = 60.0

LONG_TEXT_CHARACTERS = 20_000
"""Longer texts are tokenised in a thread: the event loop serves the other streams meanwhile."""


@dataclass(slots=True)
class Service:
    """State of one front.

    :ivar served_name: what the base model is called in requests.
    :ivar open_metrics: ``/metrics`` names tenants and adapters to everybody, not only to operators.
    :ivar names: names of adapters that an operator loaded from outside the store → digest.
    :ivar draining: new requests are refused, running ones end.
    """

    link: CoreLink
    verifier: GrantVerifier
    renderer: PromptRenderer
    metrics: FrontMetrics
    version: EngineVersion
    served_name: str
    adapter_store: Path
    adapter_roots: tuple[Path, ...]
    max_body_bytes: int
    health_deadline: float
    open_metrics: bool = False
    draining: bool = False
    names: dict[str, str] = field(default_factory=dict)

    async def read_body(self, request: Request) -> bytes:
        """The body, refused once it exceeds the limit."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size > self.max_body_bytes:
                        raise ApiError(413, f"The body exceeds {self.max_body_bytes} bytes", "body_too_large")
                    parts.append(part)
        except TimeoutError as error:
            raise ApiError(408, f"The body did not arrive within {BODY_SECONDS:g} s", "request_timeout") from error
        except ClientDisconnect as error:
            raise ApiError(400, "The client went away", "client_disconnected") from error
        return b"".join(parts)

    def grant_of(self, request: Request) -> Grant:
        """The verified grant in the request's header; not used up yet."""
        try:
            return self.verifier.verify(_bearer(request))
        except GrantRefused as error:
            raise ApiError(401, str(error), "grant_invalid") from error

    def check_operator(self, request: Request) -> None:
        """Loading, listing and tokenising are the operator's."""
        try:
            self.verifier.check_operator(_bearer(request))
        except GrantRefused as error:
            raise ApiError(401, str(error), "operator_token_invalid") from error

    async def start(self, body: GenerateBody, grant: Grant) -> Choices:
        """Check the body against the grant, use the grant up and queue the request."""
        adapter = self._adapter(body.model, grant)
        self._check_length(body, grant)
        prompt = await self._prompt_ids(body)
        check_agreement(
            grant,
            adapter=adapter,
            prompt_tokens=len(prompt),
            max_tokens=None if body.max_tokens is None else body.max_tokens * body.choices,
            cache_salt=body.cache_salt,
            priority=body.priority,
        )
        params = sampling_params(body, self._max_tokens(body, grant, len(prompt)), self.link.ready.vocab_size)
        if body.tools is not None and body.tools.forced:
            params = replace(
                params,
                constraint=body.tools.constraint(self.renderer.tool_style.arguments_key),
                stop=(),  # nothing but the call is written, and its end is known: a stop would only cut it
                stop_token_ids=(),
            )
        check_scores(body, len(prompt))
        if self.draining:
            raise ApiError(503, "The worker is shutting down", "draining", retry_after=1)
        self.verifier.use(grant)
        # 63 bits: what every random generator below takes as a seed.
        seed = params.seed if params.seed is not None else secrets.randbits(63)

        def start(index: int) -> Generation:
            # The prompt's log-probabilities are those of every choice: the first one reports them.
            wanted = params if index == 0 else replace(params, prompt_logprobs=None)
            submit = Submit(
                request_id=f"{grant.request_id}#{index}" if index else grant.request_id,
                prompt=prompt,
                params=wanted.wire(),
                seed=choice_seed(seed, index),
                tenant=grant.tenant,
                namespace=grant.namespace,
                adapter=adapter,
                priority=grant.priority,
                weight=grant.weight,
                begun=index > 0,
            )
            return Generation(
                self.link, submit, self.renderer, wanted, self.metrics,
                counts_prompt=index == 0, scores_only=body.max_tokens == 0,
            )  # fmt: skip

        return Choices(prompt, start, body.choices)

    def _adapter(self, model: str, grant: Grant) -> str | None:
        """The digest that ``model`` stands for; anything unknown is simply not what the grant is for."""
        if model == self.served_name:
            return None
        # Never compare with a grant for the base alone: an unknown name must not fall back to it.
        if grant.adapter is not None and grant.adapter in (model, self.names.get(model)):
            if not self.link.ready.num_slots:
                raise AdapterNotFound(NO_SLOTS)
            return grant.adapter
        raise GrantRefused("The grant is not for this model")

    def _check_length(self, body: GenerateBody, grant: Grant) -> None:
        """Raises :class:`GrantRefused` for a text that cannot but be too long: tokenising it would take seconds."""
        least = _characters(body) // self.renderer.longest_token
        if least > grant.max_input:
            raise GrantRefused(f"The grant allows {grant.max_input} prompt tokens, not {least} or more")

    async def _prompt_ids(self, body: GenerateBody) -> list[int]:
        renderer, prompt = self.renderer, body.prompt
        if body.messages is not None:
            return await asyncio.to_thread(renderer.encode_tool_chat, body.messages, body.tools)
        if isinstance(prompt, str):
            if len(prompt) < LONG_TEXT_CHARACTERS:
                return renderer.encode(prompt, add_special_tokens=body.add_special_tokens)
            return await asyncio.to_thread(renderer.encode, prompt, add_special_tokens=body.add_special_tokens)
        assert prompt is not None
        if max(prompt) >= self.link.ready.vocab_size:
            raise invalid("prompt", f"prompt: token ids must be below {self.link.ready.vocab_size}")
        return prompt

    def _max_tokens(self, body: GenerateBody, grant: Grant, prompt_tokens: int) -> int:
        """The request's own limit, or all that the grant and the context leave."""
        ready = self.link.ready
        room = min(ready.max_model_len, ready.num_blocks * ready.block_size + 1) - prompt_tokens
        if grant.max_output < body.choices:
            raise GrantRefused(f"The grant allows {grant.max_output} tokens, fewer than n ({body.choices})")
        most = most_scored_tokens(body) or grant.max_output
        left = min(grant.max_output // body.choices, most, max(room, 1))
        wanted = body.max_tokens if body.max_tokens is not None else left
        if max(wanted, 1) > room:
            limit = prompt_tokens + room
            raise ApiError(
                400,
                f"This worker's maximum context length is {limit} tokens; the request asks for "
                f"{prompt_tokens + wanted} ({prompt_tokens} in the prompt, {wanted} to generate)",
                "context_length_exceeded",
                "max_tokens" if room > 0 else "prompt",
            )
        return wanted


def _characters(body: GenerateBody) -> int:
    """Of the texts in the prompt; what is no text is refused elsewhere."""
    if isinstance(body.prompt, str):
        return len(body.prompt)
    messages = body.messages or ()
    contents = [message.get("content") for message in messages]
    lists = [content for content in contents if isinstance(content, list)]
    texts = [*contents, *(part.get("text") for parts in lists for part in parts if isinstance(part, dict))]
    structured = [calls for message in messages if (calls := message.get("tool_calls"))]
    if body.tools is not None:
        structured.append(body.tools.tools)
    return sum(len(text) for text in texts if isinstance(text, str)) + sum(map(len, map(orjson.dumps, structured)))


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise GrantRefused("A bearer token is missing")
    return token.strip()
