"""One running request, seen from the front: ids from the core become text."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from inference.core.messages import Submit
from inference.front.core_link import CoreLink
from inference.front.stop_text import StopText
from inference.prompt import Detokenizer, PromptRenderer
from inference.protocol import Delta, FinishReason, Usage

if TYPE_CHECKING:
    from inference.front.metrics import FrontMetrics


class Generation:
    """Submits on construction. Whoever builds one calls :meth:`close`, which aborts what is still running."""

    def __init__(
        self, link: CoreLink, submit: Submit, renderer: PromptRenderer, stops: tuple[str, ...], metrics: FrontMetrics
    ) -> None:
        self._link = link
        self._request_id = submit.request_id
        self._tenant = submit.tenant
        self._prompt_tokens = len(submit.prompt)
        self._detokenizer = Detokenizer(renderer)
        self._stop_text = StopText(stops) if stops else None
        self._metrics = metrics
        self._completion_tokens = 0
        self._last = time.monotonic()
        self._inbox = link.submit(submit)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._inbox.cached_tokens)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Text as it comes; the last delta has the finish reason and the usage. Raises what the request failed with."""
        finish: FinishReason | None = None
        while finish is None:
            tokens, finish = await self._inbox.take()
            if self._stop_text is None:
                text = self._detokenizer.push(tokens)
            else:
                text, tokens, finish = self._until_stop(self._stop_text, tokens, finish)
            first = not self._completion_tokens
            self._completion_tokens += len(tokens)
            self._observe(first, len(tokens))
            if finish is not None:
                yield Delta(text + self._rest(finish), tuple(tokens), finish, self.usage)
            else:
                yield Delta(text, tuple(tokens))

    def close(self) -> None:
        self._link.abort(self._request_id)

    def _until_stop(
        self, stop_text: StopText, tokens: list[int], finish: FinishReason | None
    ) -> tuple[str, list[int], FinishReason | None]:
        """Token by token, so that none after the stop string is counted."""
        pieces = []
        for count, token in enumerate(tokens, start=1):
            piece, stopped = stop_text.push(self._detokenizer.push([token]))
            pieces.append(piece)
            if stopped:
                self._stop_text = None
                self._detokenizer.flush()
                self.close()
                return "".join(pieces), tokens[:count], "stop"
        return "".join(pieces), tokens, finish

    def _rest(self, finish: FinishReason) -> str:
        """What was held back. At a token that ends the text nothing more can complete a stop string."""
        rest = self._detokenizer.flush()
        if self._stop_text is None:
            return rest
        text, stopped = self._stop_text.push(rest)
        return text if stopped else text + self._stop_text.flush()

    def _observe(self, first: bool, tokens: int) -> None:
        now = time.monotonic()
        self._metrics.tokens(now - self._last, tokens, self._prompt_tokens if first else None)
        prompt = (self._prompt_tokens, self._inbox.cached_tokens) if first else (0, 0)
        self._metrics.tenants.count(self._tenant, *prompt, tokens)
        self._last = now
