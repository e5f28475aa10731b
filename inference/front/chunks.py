"""The bytes of answers: OpenAI's objects for completions and chats, streamed and whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from inference.logprob_shapes import Echo, LogprobShapes
from inference.protocol import Delta, TokenLogprob, Usage, WorkerTimings
from inference.tools.answers import ToolAnswers

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Writes one request's events. What every chunk has in common is serialised once.

    :param fingerprint: what computes it: engine version, weights, base model, adapter.
    :param shapes: how log-probabilities are written.
    :param echo: the prompt that goes before each choice's text (completions), or ``None``.
    :param prompt: the prompt's ids where their log-probabilities are a field of the answer, or ``None``.
    :param stop_token_ids: tokens that end an answer, beside the model's own.
    :param answers: finds calls in a chat's answers, where tools were offered.
    """

    def __init__(
        self,
        *,
        request_id: str,
        model: str,
        fingerprint: str,
        chat: bool,
        token_ids: bool,
        include_usage: bool,
        shapes: LogprobShapes,
        echo: Echo | None = None,
        prompt: Sequence[int] | None = None,
        stop_token_ids: Sequence[int] = (),
        answers: ToolAnswers | None = None,
    ) -> None:
        self._answers = answers
        self._chat, self._token_ids, self._include_usage = chat, token_ids, include_usage
        self._shapes, self._echo, self._prompt, self._ends = shapes, echo, prompt, stop_token_ids
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None
        self._begun: set[int] = set()
        self._id = ("chatcmpl-" if chat else "cmpl-") + request_id
        self._model = model
        self._fingerprint = fingerprint
        self._created = int(time.time())
        head = {
            "id": self._id,
            "object": self._object(streamed=True),
            "created": self._created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null' if include_usage else b"]"
        self._tail = self._end + b"}\n\n"

    def delta(self, delta: Delta) -> bytes:
        """The events of one delta; before the first of a choice, a chat announces the role."""
        first = delta.index not in self._begun
        before = b""
        if first:
            self._begun.add(delta.index)
            if self._chat:
                role = b'{"index":%d,"delta":{"role":"assistant","content":""},"finish_reason":null}' % delta.index
                before = self._head + role + self._tail
        choice = self._choice(delta, first=first)
        if self._answers is not None:
            del choice["text"]
            choice["delta"], choice["finish_reason"] = self._answers.delta(delta)
        elif self._chat:
            choice["delta"] = {"content": choice.pop("text")}
        return before + self._head + orjson.dumps(choice) + self._tail_of(delta)

    def last(self, usage: Usage, timings: WorkerTimings | None = None) -> bytes:
        """After the last token."""
        if not self._include_usage:
            return DONE
        more = b"" if timings is None else _said(timings.wire())
        return self._head + b'],"usage":' + orjson.dumps(usage.openai()) + more + b"}\n\n" + DONE

    def whole(self, choices: Sequence[Delta], usage: Usage, timings: WorkerTimings | None = None) -> bytes:
        """The answer of a request that is not streamed; each choice as one delta."""
        written = [self._choice(delta, first=True) for delta in choices]
        answer: dict[str, Any] = {
            "id": self._id,
            "object": self._object(streamed=False),
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._fingerprint,
            "choices": written,
            "usage": usage.openai(),
        }
        if timings is not None:
            answer["loraplex"] = timings.wire()
        if self._chat:
            for choice in written:
                choice["message"] = {"role": "assistant", "content": choice.pop("text"), "refusal": None}
                if self._answers is not None:
                    found, choice["finish_reason"] = self._answers.whole(choices[choice["index"]])
                    choice["message"] |= found
                if "prompt_logprobs" in choice:  # vLLM has it here in chats, in the choice elsewhere
                    answer["prompt_logprobs"] = choice.pop("prompt_logprobs")
        return orjson.dumps(answer)

    def _tail_of(self, delta: Delta) -> bytes:
        """The first event says already what whoever leaves in mid-stream would not see with the usage."""
        if delta.timings is None or not self._include_usage:
            return self._tail
        return self._end + _said({**delta.timings.wire(), "cached_tokens": delta.cached_tokens}) + b"}\n\n"

    def _choice(self, delta: Delta, *, first: bool) -> dict[str, Any]:
        """What a choice has in a stream and in a whole answer; ``first``: with the prompt's part."""
        choice: dict[str, Any] = {"index": delta.index, "text": delta.text, "logprobs": None}
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs  # choice 0 brings them before the others begin
        if self._chat:
            choice["logprobs"] = self._shapes.chat(delta, self._ends)
        elif self._echo is None:
            choice["logprobs"] = self._shapes.completion(delta)
        else:
            echo = replace(self._echo, logprobs=self._prompt_logprobs or ()) if first else None
            choice["text"] = (echo.text if echo else "") + delta.text
            choice["logprobs"] = self._shapes.completion(delta, shift=len(self._echo.text), echo=echo)
        if self._token_ids:
            choice["token_ids"] = delta.token_ids
        if self._prompt is not None and first:
            choice["prompt_logprobs"] = self._shapes.prompt(self._prompt, self._prompt_logprobs or ())
        choice["finish_reason"] = delta.finish_reason
        return choice

    def _object(self, *, streamed: bool) -> str:
        if not self._chat:
            return "text_completion"
        return "chat.completion.chunk" if streamed else "chat.completion"


def _said(of_request: dict[str, Any]) -> bytes:
    return b',"loraplex":' + orjson.dumps(of_request)
