"""Talks to one worker over HTTP, as the gateway does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import orjson

from inference.errors import (
    AdapterInvalid,
    AdapterNotFound,
    GrantRefused,
    InferenceError,
    InvalidRequest,
    Overloaded,
    WorkerUnavailable,
)
from inference.logprob_reader import completion_entries, prompt_entries
from inference.protocol import Delta, Usage, WorkerTimings

CONNECT_SECONDS = 5.0
CONTROL_SECONDS = 120.0
SILENCE_SECONDS = 120.0
"""A stream in which nothing comes for so long is given up: a host that vanished sends no goodbye, and its request would
hold its tenant's lease for ever. A request that waits is not silent: while its core computes, a worker sends a comment
now and then (:data:`inference.front.event_stream.QUIET_SECONDS`)."""
MAX_EVENT_BYTES = 16 * 1024 * 1024
LONG_EVENT_BYTES = 256 * 1024
"""Longer events (a prompt's log-probabilities) are read in a thread: they take milliseconds, other streams go on."""

_DONE = b"[DONE]"
_LOGPROBS = {"logprobs", "prompt_logprobs"}


class WorkerClient:
    """One worker's endpoints; keeps no state but the session, so one per worker or one per request are the same.

    Every method raises a subclass of :class:`~inference.errors.InferenceError`: :class:`InvalidRequest` (400),
    :class:`GrantRefused` (401, 403), :class:`AdapterNotFound` (404), :class:`Overloaded` (429, 503),
    :class:`WorkerUnavailable` (anything else, and a connection that fails or breaks off). What fails in mid-stream
    raises the same as it would have before the first token.

    :param base_url: such as ``http://127.0.0.1:8001``.
    :param session: shared connection pool; its own total timeout must be off for long streams.
    """

    def __init__(self, base_url: str, session: aiohttp.ClientSession) -> None:
        self.base_url = base_url.rstrip("/")
        self._session = session

    async def generate(self, body: Mapping[str, Any], grant_token: str) -> AsyncIterator[Delta]:
        """Stream one completion. ``body`` is that of ``/v1/completions``; streaming, usage and ids are switched on.

        The last delta has ``usage`` (and no text). Closing the iterator early aborts the request at the worker.
        ``echo`` is not understood here: ask for ``prompt_logprobs``.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        if body.get("logprobs") is not None:
            asked["return_tokens_as_token_ids"] = True
        content = orjson.dumps(asked)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        try:
            response = await self._session.post(
                f"{self.base_url}/v1/completions", data=content, headers=_headers(grant_token), timeout=timeout
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerUnavailable(f"The worker cannot be reached: {type(error).__name__}") from error
        finished = False
        try:
            if response.status != 200:
                raise await _error_of(response)
            async for data in _events(response.content):
                if data == _DONE:
                    finished = True
                    return
                long = len(data) > LONG_EVENT_BYTES
                yield await asyncio.to_thread(_delta, data, body) if long else _delta(data, body)
            raise WorkerUnavailable("The worker broke off before the end of the stream")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerUnavailable(f"The worker broke off: {type(error).__name__}") from error
        finally:
            if finished:
                response.release()
            else:
                response.close()  # the worker sees the disconnect and stops computing

    async def health(self) -> dict[str, Any]:
        """What ``/health`` says; raises :class:`WorkerUnavailable` or :class:`Overloaded` when it is not healthy."""
        return await self._object("/health", None)

    async def metrics_text(self, operator_token: str | None = None) -> str:
        """The metrics in Prometheus' text format; adapters and tenants are named to operators only."""
        return (await self._call("GET", "/metrics", None, operator_token)).decode(errors="replace")

    async def models(self, operator_token: str) -> list[dict[str, Any]]:
        models = (await self._object("/v1/models", operator_token)).get("data")
        if not isinstance(models, list):
            raise WorkerUnavailable("/v1/models did not answer with a list: is this a worker?")
        return models

    async def load_adapter(self, digest: str, path: str | None, operator_token: str) -> None:
        """Make an adapter resident. One that already is raises :class:`InvalidRequest`.

        :param path: where the worker finds it; ``None``: in its own store, which only the native worker understands.
        """
        body = {"lora_name": digest} if path is None else {"lora_name": digest, "lora_path": path}
        await self._call("POST", "/v1/load_lora_adapter", body, operator_token)

    async def unload_adapter(self, digest: str, operator_token: str) -> None:
        """Take an adapter out. One that is not loaded raises :class:`AdapterNotFound`."""
        await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": digest}, operator_token)

    async def public_prefixes(self, operator_token: str) -> set[str]:
        """The ids of those declared here, as :func:`~inference.prefix_id.prefix_id` makes them."""
        found = (await self._object("/v1/public_prefixes", operator_token)).get("data")
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise WorkerUnavailable("/v1/public_prefixes did not answer with a list: is this a worker?")
        return {str(each.get("id")) for each in found}

    async def declare_prefix(self, adapter: str | None, tokens: Sequence[int], operator_token: str) -> None:
        """Let all tenants share what these tokens' full blocks come to; the same again changes nothing.

        :param adapter: digest of the adapter that it is for; ``None``: the base model.
        """
        body: dict[str, Any] = {"tokens": list(tokens)}
        if adapter is not None:
            body["model"] = adapter
        await self._call("POST", "/v1/public_prefixes", body, operator_token)

    async def withdraw_prefix(self, prefix: str, operator_token: str) -> None:
        """Nothing is shared under this id any more. One that is not declared raises :class:`AdapterNotFound`."""
        await self._call("DELETE", f"/v1/public_prefixes/{prefix}", None, operator_token)

    async def _object(self, path: str, token: str | None) -> dict[str, Any]:
        """A JSON object; anything else that answers at this address is not a worker."""
        try:
            data = orjson.loads(await self._call("GET", path, None, token))
        except orjson.JSONDecodeError as error:
            raise WorkerUnavailable(f"{path} did not answer with JSON: is this a worker?") from error
        if not isinstance(data, dict):
            raise WorkerUnavailable(f"{path} did not answer with a JSON object: is this a worker?")
        return data

    async def _call(self, method: str, path: str, body: Any, token: str | None) -> bytes:
        timeout = aiohttp.ClientTimeout(total=CONTROL_SECONDS, sock_connect=CONNECT_SECONDS)
        content = orjson.dumps(body) if body is not None else None
        try:
            async with self._session.request(
                method, self.base_url + path, data=content, headers=_headers(token), timeout=timeout
            ) as response:
                if response.status != 200:
                    raise await _error_of(response)
                return await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerUnavailable(f"The worker cannot be reached: {type(error).__name__}") from error


def _headers(token: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Data of each server-sent event; comments, which begin with a colon, are only signs of life.

    Lines are cut by hand: one call a network read instead of one a line.
    """
    rest = b""
    while chunk := await content.readany():
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_EVENT_BYTES:
            raise WorkerUnavailable("The worker sent an event without end")
        for line in lines:
            if line.startswith(b"data: "):
                yield line[6:].rstrip(b"\r")


def _delta(data: bytes, body: Mapping[str, Any]) -> Delta:
    """:param body: what was asked for."""
    try:
        event = orjson.loads(data)
        if "error" in event:
            raise _error_in_stream(event["error"])
        usage = event.get("usage")
        choices = event["choices"]
        if not choices:
            return Delta("", usage=_usage(usage), timings=_timings(event.get("loraplex")))
        choice = choices[0]
        delta = Delta(
            choice["text"],
            tuple(choice.get("token_ids") or ()),
            choice.get("finish_reason"),
            _usage(usage) if usage else None,
            choice.get("index", 0),
            fingerprint=event.get("system_fingerprint"),
        )
        if (said := event.get("loraplex")) is not None:
            delta = replace(delta, timings=_timings(said), cached_tokens=_cached(said))
        if not 0 <= delta.index < body.get("n", 1):
            raise ValueError("a choice that was not asked for")
        return delta if body.keys().isdisjoint(_LOGPROBS) else _with_logprobs(delta, choice, body)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise WorkerUnavailable("The worker sent an event that is not understood") from error


def _with_logprobs(delta: Delta, choice: Mapping[str, Any], body: Mapping[str, Any]) -> Delta:
    logprobs, scores = choice.get("logprobs"), choice.get("prompt_logprobs")
    if body.get("logprobs") is not None:  # null where the chunk brings no token
        entries = completion_entries(logprobs, body["logprobs"]) if logprobs else ()
        delta = replace(delta, logprobs=entries, offsets=tuple(logprobs["text_offset"]) if logprobs else ())
    if scores is not None:
        delta = replace(delta, prompt_logprobs=prompt_entries(scores, body["prompt"], body["prompt_logprobs"]))
    return delta


def _usage(usage: dict[str, Any]) -> Usage:
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], _cached(usage.get("prompt_tokens_details")) or 0)


def _timings(said: Any) -> WorkerTimings | None:
    """Nothing depends on them: what is no timing is none."""
    try:
        return WorkerTimings.from_wire(said)
    except (ValueError, KeyError, TypeError):
        return None


def _error_in_stream(error: Mapping[str, Any]) -> InferenceError:
    """The exception for an error event: there is no status, ``type`` tells whose fault it is and ``code`` which."""
    message, code = str(error.get("message", "The worker reported an error")), error.get("code")
    if code == "overloaded":
        return Overloaded(message, _retry_after(error.get("retry_after")))
    if error.get("type") != "invalid_request_error":
        return WorkerUnavailable(message)
    if code == "grant_refused":
        return GrantRefused(message)
    if code == "model_not_found":
        return AdapterNotFound(message)
    if code == "adapter_invalid":
        return AdapterInvalid(message, error.get("param"))
    return InvalidRequest(message, error.get("param"))


def _cached(said: Any) -> int | None:
    """Of the prompt, as the first event and the usage have it; what is no count of its tokens is none."""
    count = said.get("cached_tokens") if isinstance(said, dict) else None
    return count if type(count) is int and count >= 0 else None


async def _error_of(response: aiohttp.ClientResponse) -> InferenceError:
    """The exception for a response that is not 200."""
    message, param, code = f"The worker answered {response.status}", None, None
    try:
        error = orjson.loads(await response.read())["error"]
        message, param, code = str(error["message"]), error.get("param"), error.get("code")
    except (TimeoutError, ValueError, KeyError, TypeError, aiohttp.ClientError):
        pass  # not our shape: the status has to do
    if response.status in (400, 413):
        return AdapterInvalid(message, param) if code == "adapter_invalid" else InvalidRequest(message, param)
    if response.status in (401, 403):
        return GrantRefused(message)
    if response.status == 404:
        return AdapterNotFound(message)
    if response.status in (429, 503) and code != "engine_dead":
        return Overloaded(message, _retry_after(response.headers.get("Retry-After")))
    return WorkerUnavailable(message)


def _retry_after(said: Any) -> float:
    """Seconds, as a header or an error event has them; what is no number is one second."""
    try:
        return max(0.0, float(said))
    except (TypeError, ValueError):
        return 1.0
