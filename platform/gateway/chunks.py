from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from gateway.schemas import AnyRequest, ChatRequest, CompletionRequest
from inference.logprob_shapes import Echo, LogprobShapes
from inference.prompt import PromptRenderer
from inference.protocol import Delta, TokenLogprob, Usage
from inference.tools.answers import ToolAnswers
from tenants.access import ServedModel

FEW = 512
"""The log-probabilities of a longer prompt are written in a thread: other streams would wait for them."""


class Chunks:
    """OpenAI's objects for one request, as JSON bytes: chunks of a stream, or the one whole answer.

    The parts that stay the same are encoded once: building a chunk is then one dump of its text and a join.

    :param fingerprint: ``system_fingerprint`` as the worker gave it; without one, the base model's.
    :param shapes: writes log-probabilities.
    :param prompt: token ids.
    :param echo: the prompt as it goes before each choice's text, or ``None``.
    :param answers: finds calls in a chat's answers, where tools were offered.
    """

    def __init__(
        self,
        request_id: UUID,
        request: AnyRequest,
        model: ServedModel,
        *,
        shapes: LogprobShapes,
        fingerprint: str | None = None,
        prompt: Sequence[int] = (),
        echo: Echo | None = None,
        answers: ToolAnswers | None = None,
    ) -> None:
        self._answers = answers
        self._chat = isinstance(request, ChatRequest)
        self._include_usage = request.include_usage
        self._shapes, self._prompt, self._echo = shapes, prompt, echo
        self._shows_prompt = request.prompt_logprobs is not None
        self._ends = request.stop_token_ids or ()
        self._scores: tuple[TokenLogprob, ...] = ()
        self._begun: set[int] = set()
        self._opened = 0  # choices that the client has seen begin: 0, 1, 2, in this order
        kind = "chatcmpl" if self._chat else "cmpl"
        self._head: dict[str, Any] = {
            "id": f"{kind}-{request_id.hex}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": fingerprint or f"fp_{model.fingerprint[:12]}",
        }
        self._usage_head = orjson.dumps(self._head)[:-1] + b',"choices":['
        self._open = self._usage_head + b'{"index":'
        self._text = b',"delta":{"content":' if self._chat else b',"text":'
        self._logprobs = b'},"logprobs":' if self._chat else b',"logprobs":'
        nothing = b',"delta":{},"logprobs":null' if self._chat else b',"text":"","logprobs":null'
        self._finish = nothing + b',"finish_reason":'
        self._close = b'}],"usage":null}' if self._include_usage else b"}]}"

    @classmethod
    async def of_run(
        cls,
        request_id: UUID,
        request: AnyRequest,
        model: ServedModel,
        prompt: Sequence[int],
        renderer: PromptRenderer,
        *,
        fingerprint: str | None,
    ) -> Chunks:
        echo = None
        if isinstance(request, CompletionRequest) and request.echo:
            given = request.prompt
            text = given if isinstance(given, str) else None
            if len(prompt) > FEW:
                echo = await asyncio.to_thread(Echo.of, renderer, prompt, text)
            else:
                echo = Echo.of(renderer, prompt, text)
        return cls(
            request_id, request, model, shapes=LogprobShapes(renderer), fingerprint=fingerprint,
            prompt=prompt, echo=echo, answers=ToolAnswers.of(request.tool_use, renderer),
        )  # fmt: skip

    def of(self, delta: Delta) -> list[bytes]:
        """Chunks for one delta: the role first where a chat's choice begins; none while text is held back; two when
        text and the end come together.
        """
        begin = self._open + b"%d" % delta.index
        first = delta.index not in self._begun
        self._begun.add(delta.index)
        chunks = self._opening(delta.index)
        text, logprobs, more = delta.text, None, b""
        if delta.logprobs is not None or first:
            text, logprobs, scores = self._scored(delta, first=first)
            more = b',"prompt_logprobs":' + orjson.dumps(scores) if scores is not None else b""
        shown = b"null" if logprobs is None else orjson.dumps(logprobs)
        finish: str | None = delta.finish_reason
        if self._answers is not None:
            found, finish = self._answers.delta(delta)
            if found or logprobs is not None:
                body = b',"delta":' + orjson.dumps(found) + b',"logprobs":' + shown
                chunks.append(begin + body + b',"finish_reason":null' + self._close)
        elif text or logprobs is not None or more:
            chunks.append(
                begin + self._text + orjson.dumps(text) + self._logprobs + shown + more + b',"finish_reason":null'
                + self._close
            )  # fmt: skip
        if finish is not None:
            chunks.append(begin + self._finish + orjson.dumps(finish) + self._close)
        return chunks

    def _opening(self, index: int) -> list[bytes]:
        """What makes choices up to ``index`` appear in order, as clients that append them rely on: a chat's with their
        role, a text's, where a later one overtook them, empty.
        """
        role = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        begin = role if self._chat else b',"text":"","logprobs":null,"finish_reason":null'
        end = index + 1 if self._chat else index
        chunks = [self._open + b"%d" % number + begin + self._close for number in range(self._opened, end)]
        self._opened = max(self._opened, index + 1)
        return chunks

    def last(self, usage: Usage) -> list[bytes]:
        """The usage chunk, where the client asked for it."""
        if not self._include_usage:
            return []
        return [self._usage_head + b'],"usage":' + orjson.dumps(usage.openai()) + b"}"]

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> bytes:
        """The answer of a request that does not stream; each choice as one delta."""
        choices = [self._choice(delta) for delta in deltas]
        kind = "chat.completion" if self._chat else "text_completion"
        answer = {**self._head, "object": kind, "choices": choices, "usage": usage.openai()}
        if self._chat and self._shows_prompt:  # vLLM has it here in chats, in the choice elsewhere
            answer["prompt_logprobs"] = self._shapes.prompt(self._prompt, self._scores)
        return orjson.dumps(answer)

    def _choice(self, delta: Delta) -> dict[str, Any]:
        text, logprobs, scores = self._scored(delta, first=True)
        choice: dict[str, Any] = {"index": delta.index, "logprobs": logprobs, "finish_reason": delta.finish_reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            if self._answers is not None:
                found, choice["finish_reason"] = self._answers.whole(delta)
                choice["message"] |= found
        else:
            choice["text"] = text
        return choice if scores is None else {**choice, "prompt_logprobs": scores}

    def _scored(self, delta: Delta, *, first: bool) -> tuple[str, dict[str, Any] | None, list[Any] | None]:
        """The delta's text and log-probabilities with the echoed prompt before the first; the prompt's own."""
        if delta.prompt_logprobs is not None:
            self._scores = delta.prompt_logprobs  # choice 0 brings them before the others begin
        if self._chat:
            return delta.text, self._shapes.chat(delta, self._ends), None
        scores = self._shapes.prompt(self._prompt, self._scores) if first and self._shows_prompt else None
        if self._echo is None:
            return delta.text, self._shapes.completion(delta), scores
        echo = replace(self._echo, logprobs=self._scores) if first else None
        logprobs = self._shapes.completion(delta, shift=len(self._echo.text), echo=echo)
        return (echo.text if echo is not None else "") + delta.text, logprobs, scores
