"""One running choice, seen from the front: ids from the core become text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from inference.core.messages import Submit
from inference.errors import InferenceError
from inference.front.answer_text import AnswerText
from inference.front.core_link import CoreLink
from inference.front.request_times import RequestTimes
from inference.prompt import PromptRenderer
from inference.protocol import Delta, FinishReason, SamplingParams, TokenLogprob, Usage

if TYPE_CHECKING:
    from inference.front.metrics import FrontMetrics


class Generation:
    """Submits on construction. Whoever builds one calls :meth:`close`, which aborts what is still running.

    :param counts_prompt: this choice is the one of its request that the prompt is counted with.
    :param scores_only: the token that the core chose is nobody's: the client asked for the prompt alone.
    :ivar times: of this choice so far.
    """

    def __init__(
        self,
        link: CoreLink,
        submit: Submit,
        renderer: PromptRenderer,
        params: SamplingParams,
        metrics: FrontMetrics,
        *,
        counts_prompt: bool = True,
        scores_only: bool = False,
    ) -> None:
        self._link = link
        self._request_id = submit.request_id
        self._prompt_tokens = len(submit.prompt) if counts_prompt else 0
        self._counts_prompt, self._scores_only = counts_prompt, scores_only
        self._text = AnswerText(
            renderer, params.stop, min_tokens=params.min_tokens, logprobs=params.logprobs is not None
        )
        self._scores_prompt = params.prompt_logprobs is not None
        self._began = False
        self._completion_tokens = 0
        self._inbox = link.submit(submit)
        self.times = RequestTimes(
            metrics, tenant=submit.tenant, prompt_tokens=self._prompt_tokens, max_tokens=params.max_tokens
        )

    @property
    def usage(self) -> Usage:
        """Tokens so far; without the prompt's where they are not counted here."""
        cached = self._inbox.cached_tokens if self._counts_prompt else 0
        return Usage(self._prompt_tokens, self._completion_tokens, cached)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Text as it comes; the first delta of the choice that counts the prompt says what was cached and how long it
        took, the last delta has the finish reason and the usage. Raises what the request failed with.
        """
        finish: FinishReason | None = None
        while finish is None:
            try:
                tokens, finish = await self._inbox.take()
            except InferenceError:
                self.times.ended("error")
                raise
            logprobs: Sequence[TokenLogprob] = self._inbox.logprobs
            self._inbox.logprobs = []
            if self._scores_only:
                tokens, logprobs, finish = [], [], "length"
            piece = self._text.push(tokens, logprobs, last=finish is not None)
            if piece.stopped:
                self._link.abort(self._request_id)
                finish = "stop"
            first = not self._began
            self._began = True
            self._completion_tokens += len(piece.tokens)
            self.times.gained(len(piece.tokens), cached=self.usage.cached_tokens, waited=self._inbox.waited)
            if finish is not None:
                self.times.ended(finish)
            tells = first and self._counts_prompt
            yield Delta(
                piece.text,
                tuple(piece.tokens),
                finish,
                self.usage if finish is not None else None,
                logprobs=piece.logprobs,
                offsets=piece.offsets,
                prompt_logprobs=(self._inbox.prompt_logprobs or ()) if first and self._scores_prompt else None,
                timings=self.times.timings(self.times.last) if tells else None,
                cached_tokens=self.usage.cached_tokens if tells else None,
            )

    def close(self) -> None:
        self._link.abort(self._request_id)
        self.times.ended("abort")  # unless it has ended
