"""A server that speaks the worker's dialect and computes nothing: for the relay's own cost, and for workers that fail.

Run as a script: ``python stub_worker.py FINGERPRINT [--interval SECONDS]``; prints ``ready URL``. What a request's
``seed`` says decides how it behaves: 1 breaks off after 3 tokens, 2 sends an error event after 3 tokens, 3 answers 503,
4 sends nothing until it is aborted, 5 sends a choice that nobody asked for, 6 and 7 send error events about the request
and about a full worker after 3 tokens, 8 lets later choices overtake
earlier ones, 9 says where the time went, with the usage as workers once did, 10 says it in a way that makes no sense,
11 says so with the first token, and how much was cached, 12 does and breaks off after 3 tokens.
``GET /seen`` tells the bodies and how many requests were aborted.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import jwt
from aiohttp import web

BREAK_OFF, ERROR_EVENT, BUSY, SILENT, STRAY, AT_FAULT, SHED, OVERTAKEN = 1, 2, 3, 4, 5, 6, 7, 8
TIMED, MISTIMED, EARLY, EARLY_BREAK_OFF, ABSURD = 9, 10, 11, 12, 13
CACHED = 2
TIMINGS = {
    TIMED: {"queue_ms": 12.4, "prefill_ms": 30.6, "decode_ms": 5.0},
    MISTIMED: {"queue_ms": -1, "prefill_ms": "soon", "decode_ms": None},
}
FIRST = {
    EARLY: {"queue_ms": 12.4, "prefill_ms": 30.6, "decode_ms": 0.0, "cached_tokens": CACHED},
    EARLY_BREAK_OFF: {"queue_ms": 12.4, "prefill_ms": 30.6, "decode_ms": 0.0, "cached_tokens": CACHED},
    MISTIMED: {"queue_ms": -1, "prefill_ms": "soon", "decode_ms": None, "cached_tokens": "many"},
    ABSURD: {"queue_ms": 12.4, "prefill_ms": 30.6, "decode_ms": 0.0, "cached_tokens": 5_000_000_000},
}
AT_LAST = {EARLY: CACHED, MISTIMED: "many"}
"""Cached tokens in the usage."""
EVENTS = {
    ERROR_EVENT: {"message": "core died", "type": "server_error", "param": None, "code": "engine_dead"},
    AT_FAULT: {
        "message": "stop: ends here", "type": "invalid_request_error", "param": "stop", "code": "invalid_value",
    },
    SHED: {"message": "shed", "type": "server_error", "param": None, "code": "overloaded"},
}  # fmt: skip


class Stub:
    def __init__(self, fingerprint: str, interval: float) -> None:
        self.fingerprint = fingerprint
        self.interval = interval
        self.bodies: list[dict] = []
        self.aborted = 0
        self.running = 0

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "fingerprint": self.fingerprint})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n")

    async def seen(self, request: web.Request) -> web.Response:
        return web.json_response({"bodies": self.bodies[-50:], "aborted": self.aborted, "running": self.running})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append({**body, "authorization": request.headers.get("authorization", "")[:7]})
        if body.get("seed") == BUSY:
            error = {"message": "full", "type": "server_error", "param": None, "code": "overloaded"}
            return web.json_response({"error": error}, status=503, headers={"retry-after": "1"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        try:
            if "max_tokens" not in body:
                body["max_tokens"] = _granted(request) // body.get("n", 1)
            await self._stream(body, response)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            self.running -= 1
        return response

    async def _stream(self, body: dict, response: web.StreamResponse) -> None:
        count = body["max_tokens"]
        head = {"id": "cmpl-stub", "object": "text_completion", "created": 1, "model": body["model"]}
        head["system_fingerprint"] = f"stub-{body['model'][:12]}"
        if body.get("seed") == SILENT:
            await asyncio.sleep(3600)
        for number in range(count):
            if body.get("seed") in {BREAK_OFF, EARLY_BREAK_OFF} and number == 3:
                response._payload_writer.transport.abort()
                return
            if (error := EVENTS.get(body.get("seed"))) is not None and number == 3:
                await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
                return
            reason = "length" if number == count - 1 else None
            indices = list(range(body.get("n", 1))) if body.get("seed") != STRAY else [7]
            if body.get("seed") == OVERTAKEN:
                indices.reverse()
                reason = reason and "stop"
            for index in indices:
                choice = {"index": index, "text": f" {number}", "token_ids": [number], "finish_reason": reason}
                event = {**head, "choices": [choice], "usage": None}
                if number == 0 and (said := FIRST.get(body.get("seed"))) is not None:
                    event["loraplex"] = said
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if self.interval:
                await asyncio.sleep(self.interval)
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": count * body.get("n", 1),
            "total_tokens": len(body["prompt"]) + count * body.get("n", 1),
            "prompt_tokens_details": {"cached_tokens": AT_LAST.get(body.get("seed"), 0)},
        }
        last = {**head, "choices": [], "usage": usage}
        if (timings := TIMINGS.get(body.get("seed"))) is not None:
            last["loraplex"] = timings
        await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")


def _granted(request: web.Request) -> int:
    """What a worker generates at most where the request names no maximum; its context is without end here."""
    token = request.headers["authorization"].removeprefix("Bearer ")
    return int(jwt.decode(token, options={"verify_signature": False})["max_out"])


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fingerprint")
    parser.add_argument("--interval", type=float, default=0.0)
    arguments = parser.parse_args()
    stub = Stub(arguments.fingerprint, arguments.interval)
    app = web.Application()
    app.add_routes(
        [
            web.get("/health", stub.health),
            web.get("/metrics", stub.metrics),
            web.get("/seen", stub.seen),
            web.post("/v1/completions", stub.completions),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"ready http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
