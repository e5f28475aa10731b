"""What to paste into a terminal to try the demo. A test runs each as printed."""

from __future__ import annotations

import json
import shlex
import sys

QUESTION = "What is the capital of France?"


def snippets(url: str, api_key: str, model: str) -> dict[str, str]:
    """Shell commands by title."""
    return {
        "curl": _curl(url, api_key, model, stream=False),
        "curl, streaming": _curl(url, api_key, model, stream=True),
        "WebSocket": _python(_WEBSOCKET, url, api_key, model),
        "openai-python": _python(_OPENAI, url, api_key, model),
    }


def _body(model: str, *, stream: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 48}
    body["temperature"] = 0  # a model this small wanders at OpenAI's default of 1
    return body | ({"stream": True} if stream else {})


def _curl(url: str, api_key: str, model: str, *, stream: bool) -> str:
    return (
        f"curl {'-N ' if stream else ''}-sS -w '\\n' {url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {api_key}' -H 'Content-Type: application/json' \\\n"
        f"  -d '{json.dumps(_body(model, stream=stream))}'"
    )


_WEBSOCKET = """
import json
from websockets.sync.client import connect

with connect("{ws_url}/v1/ws", additional_headers={{"Authorization": "Bearer {api_key}"}}) as ws:
    ws.send(json.dumps({{"type": "request", "id": "1", "body": {body}}}))
    while (frame := json.loads(ws.recv()))["type"] == "chunk":
        for choice in frame["data"]["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
    print("\\n" + frame["type"])
"""

_OPENAI = """
from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="{api_key}")
messages = [{{"role": "user", "content": "{question}"}}]
request = dict(model="{model}", messages=messages, max_tokens=48, temperature=0)
for chunk in client.chat.completions.create(**request, stream=True):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
"""


def _python(template: str, url: str, api_key: str, model: str) -> str:
    program = template.format(
        url=url,
        ws_url=f"ws{url.removeprefix('http')}",
        api_key=api_key,
        model=model,
        question=QUESTION,
        body=json.dumps(_body(model, stream=False)),
    )
    return f"{shlex.quote(sys.executable)} - <<'END'{program}END"
