"""Structured outputs through openai-python, the gateway and a real worker."""

from __future__ import annotations

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, Process

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "Alice is 31 years old and lives in Paris. Describe her as JSON."}]


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


def client_of(gateway: Process, actor: Actor) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=actor.secret, base_url=f"{gateway.url}/v1", max_retries=0, timeout=120)


async def test_pydantic_models_come_back(gateway: Process, house: RealHouse, acme: Actor) -> None:
    async with client_of(gateway, acme) as client:
        answer = await client.chat.completions.parse(
            model=house.base.name, messages=QUESTION, response_format=Person, temperature=0, max_tokens=80
        )
        person = answer.choices[0].message.parsed
        assert person is not None
        assert (person.name, person.age, person.city) == ("Alice", 31, "Paris")
        assert answer.choices[0].finish_reason == "stop"
        row = house.one_row(acme)
        assert answer.usage is not None
        assert row.completion_tokens == answer.usage.completion_tokens


async def test_streamed_and_as_a_text_completion(gateway: Process, house: RealHouse, acme: Actor) -> None:
    async with client_of(gateway, acme) as client:
        stream = await client.chat.completions.create(
            model=house.base.name,
            messages=[{"role": "user", "content": "Is fire hot?"}],
            extra_body={"structured_outputs": {"choice": ["yes, it is", "no, it is not"]}},
            stream=True,
            max_tokens=20,
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text in ("yes, it is", "no, it is not")
        answer = await client.completions.create(
            model=house.base.name,
            prompt="Call ",
            max_tokens=20,
            extra_body={"structured_outputs": {"regex": "\\d{3}-\\d{4}"}},
        )
        assert answer.choices[0].text.replace("-", "").isdigit()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {"type": "object", "reqired": []}}}, "structured_outputs.json"),
        ({"guided_json": {}}, "guided_json"),
    ],
)
async def test_what_is_refused_is_named_and_costs_nothing(
    gateway: Process, house: RealHouse, acme: Actor, fields: dict[str, object], param: str
) -> None:
    async with client_of(gateway, acme) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model=house.base.name, messages=QUESTION, extra_body=fields, stream=True
            )
    assert caught.value.param == param
    assert all(row.prompt_tokens == row.completion_tokens == 0 for row in house.ledger(acme))
