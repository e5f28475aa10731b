"""A batch on a real worker, through openai-python: the answers are those of live requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from openai import AsyncOpenAI, OpenAI

from gateway.batches import runner
from tests.end_to_end.conftest import RealHouse
from tests.gateway.batches.conftest import again, line, new_batch
from tests.gateway.house import Actor, Process


def test_answers_are_those_of_live_requests(house: RealHouse, acme: Actor, gateway: Process) -> None:
    models = [house.base.name, house.add(acme, "pirate")]
    bodies: dict[str, dict[str, Any]] = {
        f"{model} {question}": {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 12,
        }
        for model in models
        for question in ("What is the sea?", "Name a colour.", "Count to five.")
    }
    with OpenAI(api_key=acme.secret, base_url=f"{gateway.url}/v1", max_retries=0) as client:
        live = {name: client.chat.completions.create(**body) for name, body in bodies.items()}
        lines = [
            {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
            for name, body in bodies.items()
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=content, purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        asyncio.run(runner.run(120, lambda: False))
        batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.output_file_id is not None
        text = client.files.content(batch.output_file_id).text
    answers = {each["custom_id"]: each["response"]["body"] for each in map(json.loads, text.splitlines())}
    assert answers.keys() == live.keys()
    for name, answer in answers.items():
        assert answer["choices"][0]["message"]["content"] == live[name].choices[0].message.content
        assert answer["model"] == live[name].model
    rows = [row for row in house.ledger(acme) if row.kind == "settle"]
    assert len(rows) == 2 * len(bodies)


async def test_live_requests_go_before_the_lines_of_a_batch(house: RealHouse, acme: Actor, gateway: Process) -> None:
    """A batch that keeps the worker busy for long; a live request of the same tenant does not wait for its end."""
    long = [line(str(n), model=house.base.name, max_tokens=150, ignore_eos=True) for n in range(24)]
    batch = new_batch(acme, long)
    running = asyncio.create_task(runner.run(300, lambda: False))
    while again(batch).status != "in_progress" or house.running(acme) < 4:  # noqa: ASYNC110 - rows, not events
        await asyncio.sleep(0.05)
    async with AsyncOpenAI(api_key=acme.secret, base_url=f"{gateway.url}/v1", max_retries=0) as client:
        question: Any = {"model": house.base.name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
        await client.chat.completions.create(**question)
    done = again(batch).completed
    assert done < 24, "the batch was over before the live request was answered"
    await running
    assert again(batch).completed == 24
