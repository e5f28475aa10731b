from __future__ import annotations

import asyncio
from collections import OrderedDict

from gateway.errors import bad_request
from gateway.schemas import AnyRequest, ChatRequest
from inference.prompt import PromptRenderer
from tenants.access import ServedModel

MOST_MODELS = 16
THREAD_FROM_CHARACTERS = 4096
"""Shorter prompts are encoded in less time than a thread takes to start."""


class Renderers:
    """Chat templates and tokenizers of the base models in use, loaded once per fingerprint."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, asyncio.Task[PromptRenderer]] = OrderedDict()

    async def of(self, model: ServedModel) -> PromptRenderer:
        """Raises :class:`~inference.errors.ConfigError` or ``OSError`` when the model store cannot be read."""
        task = self._loaded.get(model.fingerprint)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(asyncio.to_thread(PromptRenderer.load, model.model_dir))
            self._loaded[model.fingerprint] = task
            if len(self._loaded) > MOST_MODELS:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(model.fingerprint)
        return await asyncio.shield(task)

    async def encode(self, model: ServedModel, request: AnyRequest) -> list[int]:
        """Token ids of the request's prompt. Raises :class:`~inference.errors.InvalidRequest` or ``ApiError`` 400."""
        renderer = await self.of(model)
        if isinstance(request, ChatRequest):
            messages = [message.plain() for message in request.messages]
            size = sum(len(message.content) for message in request.messages)
            if size < THREAD_FROM_CHARACTERS:
                return renderer.encode_chat(messages)
            return await asyncio.to_thread(renderer.encode_chat, messages)
        prompt = request.one_prompt()
        if isinstance(prompt, str):
            ids = await asyncio.to_thread(renderer.encode, prompt, add_special_tokens=True)
            if not ids:
                raise bad_request("prompt: holds no token.", "prompt")
            return ids
        if max(prompt) >= renderer.vocab_size:
            raise bad_request(f"prompt: token ids have to be below {renderer.vocab_size}.", "prompt")
        return list(prompt)
