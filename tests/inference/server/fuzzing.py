"""Requests that nobody should send, the same for the same seed, as raw bytes and as a client that behaves badly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.inference.front.actors import Signer, WorkerProcess

PATIENCE_SECONDS = 15.0
"""A connection on which nothing has happened for so long is a hang: every bound of the worker's is shorter."""

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "get", "")
PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    *("/tokenize", "/detokenize", "/health", "/metrics", "/", "/v1", "/v1/", "//v1/completions", "/v1/completions/"),
    *("/../../etc/passwd", "/%2e%2e/%00", "/v1/completions?model=x&%ff", "/" + "a" * 3000, "*", "http://x/health"),
    *("/\x7f", "/ü", "/v1/completions#f", "", "?"),
)
FIELDS = (
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids"),
    *("ignore_eos", "min_tokens", "stream", "stream_options", "return_token_ids", "add_special_tokens", "cache_salt"),
    *("priority", "user", "n", "best_of", "echo", "suffix", "logprobs", "top_logprobs", "prompt_logprobs", "tools"),
    *("tool_choice", "response_format", "guided_json", "guided_regex", "guided_grammar", "guided_choice", "lora_name"),
    *("structured_outputs", "lora_path", "tokens", "surprise", "__class__", "", "\u0000"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 49_151, 49_152, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.5, 1e308),
    *("", "x", "fake", "\u0000", "🏴‍☠️" * 5, "a" * 30_000, "[DONE]", "\n\ndata: {}", "../../etc", "/etc/passwd"),
    *([], [0], [1, 2, 3], [-1], [1.5], ["a"], [[1]], [None], list(range(600)), {}, {"a": {}}, {"5": 1}, {"x": 1}),
    {"include_usage": True},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}},
    *(
        {"json": {"$ref": "#"}},
        {"json": "[[["},
        {"regex": "(a{1,1000}){1,1000}"},
        {"regex": "\u0000"},
        {"choice": [""]},
    ),
    *(
        {"grammar": "start: start start"},
        {"grammar": 'start: "a"*'},
        {"json_object": True},
        {"regex": ".*", "json": {}},
    ),
    [{"role": "user", "content": "hi"}],
    [{"role": "system"}, {"content": 3}],
    [{"role": "user", "content": [{"type": "image_url"}]}],
)
HEADERS = (
    *("Content-Type: text/xml", "Content-Encoding: gzip", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip"),
    *("Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 5", "Expect: 100-continue"),
    *("Connection: close", "Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c", "Host: y", "Authorization: x"),
    *("X-A: \x01", "X-Ü: ü", ": empty", "No colon", "X-Long: " + "y" * 9000, "Range: bytes=0-", "Cookie: a=b; c"),
)


@dataclass
class Fuzzer:
    """:ivar statuses: how often each came, 0 where the connection ended without one."""

    worker: WorkerProcess
    rng: random.Random
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def signer(self) -> Signer:
        return self.worker.signer

    async def attack(self) -> None:
        """One connection of one random kind; ``AssertionError`` for a server error or a hang."""
        kinds = (self.noise, self.strange_request, self.wrong_body, self.wrong_body, self.framing, self.right_request)
        parts = self.rng.choice(kinds)()
        sent = b"".join(parts)
        if self.rng.random() < 0.15:
            sent = sent[: self.rng.randrange(len(sent) + 1)]
        leave_early = self.rng.random() < 0.25
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                answer = await self.exchange(sent, leave_early=leave_early, slowly=self.rng.random() < 0.2)
        except TimeoutError as error:
            raise AssertionError(f"no end within {PATIENCE_SECONDS} s: {sent[:2000]!r}") from error
        self.judge(sent, answer)

    async def exchange(self, sent: bytes, *, leave_early: bool, slowly: bool) -> bytes:
        """Send in one to three pieces; read to the end, slowly or only a little."""
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.worker.url.rsplit(":", 1)[1]))
        answer = b""
        with contextlib.suppress(ConnectionError):
            cuts = sorted(self.rng.randrange(len(sent) + 1) for _ in range(self.rng.randrange(3)))
            for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                writer.write(sent[start:end])
                await writer.drain()
                await asyncio.sleep(self.rng.choice((0, 0, 0.01, 0.1)))
            while piece := await reader.read(200 if slowly else 65_536):
                answer += piece
                if leave_early and self.rng.random() < 0.5:
                    break
                if slowly and len(answer) < 4000:
                    await asyncio.sleep(0.02)
        writer.close()
        return answer

    def judge(self, sent: bytes, answer: bytes) -> None:
        status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
        self.statuses[status] += 1
        assert not answer or status, f"not HTTP: {answer[:200]!r} to {sent[:2000]!r}"
        assert status < 500 or status == 503, f"{answer[:500]!r} to {sent[:2000]!r}"
        if status >= 400 and b"\r\n\r\n" in answer and not sent.startswith(b"HEAD "):
            body = answer.partition(b"\r\n\r\n")[2]
            with contextlib.suppress(ValueError):  # cut short by us, or followed by another answer
                assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}

    # region what is sent

    def noise(self) -> list[bytes]:
        return [self.rng.randbytes(self.rng.choice((1, 10, 1000, 70_000))), self.rng.choice((b"", b"\r\n\r\n"))]

    def strange_request(self) -> list[bytes]:
        rng = self.rng
        lines = [f"{rng.choice(METHODS)} {rng.choice(PATHS)} HTTP/1.1", "Host: x"]
        lines += rng.sample(HEADERS, rng.randrange(4))
        if rng.random() < 0.5:
            lines.append(f"Authorization: Bearer {self.token()}")
        body = rng.choice((b"", b"{}", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", rng.randbytes(50)))
        return [("\r\n".join(lines) + "\r\n\r\n").encode(), body, self.close()]

    def right_request(self) -> list[bytes]:
        """Only its client may leave, or read slowly."""
        body = {"model": "fake", "prompt": [self.rng.randrange(1, 100)], "max_tokens": 60, "stream": True}
        text = json.dumps(body).encode()
        return [self.head("POST", "/v1/completions", len(text), token=self.signer.token()), text, self.close()]

    def wrong_body(self) -> list[bytes]:
        """Right in every way but one or two of its fields."""
        rng = self.rng
        path = rng.choice(PATHS[:7])
        body: dict[str, Any] = {"model": "fake", "max_tokens": rng.choice((1, 5, 40))}
        if path == "/v1/chat/completions":
            body["messages"] = [{"role": "user", "content": "hi"}]
        else:
            body["prompt"] = [rng.randrange(1, 100) for _ in range(rng.choice((1, 30, 400)))]
        body["stream"] = rng.random() < 0.5
        for _ in range(rng.randrange(4)):
            body[rng.choice(FIELDS)] = rng.choice(VALUES)
        text = json.dumps(body).encode()
        if rng.random() < 0.1:
            text = text.replace(b"1", rng.choice((b"NaN", b"Infinity", b"\xff", b"1" * 5000, b"[" * 3000)), 1)
        return [self.head("POST", path, len(text)), text, self.close()]

    def framing(self) -> list[bytes]:
        """Bodies that are longer, shorter or other than their head says; several requests on one connection."""
        rng = self.rng
        text = json.dumps({"model": "fake", "prompt": [1], "max_tokens": 3}).encode()
        match rng.randrange(5):
            case 0:
                return [self.head("POST", "/v1/completions", len(text) + 50), text]
            case 1:
                return [self.head("POST", "/v1/completions", len(text) - 5), text]
            case 2:
                pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (text[:9], text[9:])]
                end = rng.choice((b"0\r\n\r\n", b"", b"-1\r\n", b"fffffffffffffffff\r\n"))
                chunked = self.head("POST", "/v1/completions", None, "Transfer-Encoding: chunked")
                return [chunked, *pieces, end, self.close()]
            case 3:
                return [self.head("POST", "/v1/completions", len(text)) + text for _ in range(4)] + [self.close()]
            case _:
                return [self.head("POST", "/v1/completions", 200_000), b"x" * 200_000, self.close()]

    def head(self, method: str, path: str, length: int | None, *lines: str, token: str | None = None) -> bytes:
        fields = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token or self.token()}", *lines]
        if length is not None:
            fields.append(f"Content-Length: {length}")
        return ("\r\n".join(fields) + "\r\n\r\n").encode()

    def token(self) -> str:
        kind = self.rng.random()
        if kind < 0.8:
            return self.signer.token(tenant=f"t{self.rng.randrange(5)}")
        return self.signer.operator() if kind < 0.95 else "nonsense"

    def close(self) -> bytes:
        """A last request after which the server closes, so that reading to the end ends."""
        return b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    # endregion
