"""What an input file may hold, and what a wrong one is told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from gateway.batches.lines import MOST_ERRORS, check, custom_id_of, read
from tenants.batches import MOST_LINES
from tenants.errors import ModelNotFound
from tests.gateway.batches.conftest import CHAT, jsonl, line


def resolve(name: str) -> None:
    if name != "tiny":
        raise ModelNotFound(name)


def checked(tmp_path: Path, content: bytes, endpoint: str = CHAT) -> tuple[int, list[dict[str, Any]]]:
    path = tmp_path / "input"
    path.write_bytes(content)
    return check(path, endpoint, resolve)


def good(custom_id: str = "a", **body: Any) -> dict[str, Any]:
    return line(custom_id, model="tiny", **body)


def test_a_good_file(tmp_path: Path) -> None:
    assert checked(tmp_path, jsonl([good("a"), good("b")]) + b"\n  \n" + jsonl([good("c")]).rstrip()) == (3, [])


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b'"\\ud800"', "invalid_json_line", None),
        ({**good(), "extra": 1}, "unknown_parameter", "extra"),
        ({**good(), "a\0b": 1}, "unknown_parameter", "a\\x00b"),
        ({"custom_id": "a"}, "missing_required_parameter", "method"),
        ({**good(), "custom_id": 7}, "invalid_value", "custom_id"),
        ({**good(), "custom_id": ""}, "invalid_value", "custom_id"),
        ({**good(), "custom_id": "x" * 513}, "invalid_value", "custom_id"),
        ({**good(), "method": "GET"}, "invalid_value", "method"),
        ({**good(), "url": "/v1/embeddings"}, "mismatched_url", "url"),
        ({**good(), "url": "/v1/completions"}, "mismatched_url", "url"),
        ({**good(), "body": []}, "invalid_json", "body"),
        (good(temperature=9), "invalid_value", "body.temperature"),
        (good(temprature=1), "unknown_parameter", "body.temprature"),
        (good(stream=True), "invalid_value", "body.stream"),
        (good(messages=[{"role": "user", "content": 1}]), "invalid_value", "body.messages[0].content"),
        (line("a"), "missing_required_parameter", "body.model"),
        (line("a", model="theirs/x"), "model_not_found", "body.model"),
        (good("first"), "duplicate_custom_id", "custom_id"),
        (jsonl([good(user="x" * (4 << 20))]).strip(), "line_too_large", None),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, text: Any, code: str, param: str | None) -> None:
    total, errors = checked(tmp_path, jsonl([good("first"), text, good("last")]))
    assert total == 3
    (error,) = errors
    assert (error["line"], error["code"], error["param"]) == (2, code, param)
    json.dumps(error).encode()
    assert "\\u0000" not in json.dumps(error)  # what PostgreSQL's JSON does not take


def test_a_line_that_is_not_valid_any_more_is_named_by_its_number() -> None:
    assert custom_id_of(17, json.dumps(good("a")).encode()) == "a"
    for text in (None, b"{", b"{}"):
        assert custom_id_of(17, text) == "line 17 of the input"


def test_nothing_is_no_batch(tmp_path: Path) -> None:
    for content in (b"", b"\n\n"):
        assert [error["code"] for error in checked(tmp_path, content)[1]] == ["empty_file"]


def test_errors_have_an_end(tmp_path: Path) -> None:
    _, errors = checked(tmp_path, b"{\n" * 1000)
    assert [error["line"] for error in errors] == list(range(1, MOST_ERRORS + 1))


def test_one_line_too_many_is_told_soon_and_alone(tmp_path: Path) -> None:
    text = "".join(json.dumps(good(str(number))) + "\n" for number in range(MOST_LINES + 1)).encode()
    begun = time.monotonic()
    total, errors = checked(tmp_path, text)
    assert (total, [error["code"] for error in errors]) == (MOST_LINES + 1, ["too_many_lines"])
    assert time.monotonic() - begun < 60
    assert checked(tmp_path, text[: text.rstrip().rindex(b"\n") + 1]) == (MOST_LINES, [])


def test_a_line_of_a_megabyte_is_one_of_many(tmp_path: Path) -> None:
    big = good("big", messages=[{"role": "user", "content": "x" * (1 << 20)}])
    assert checked(tmp_path, jsonl([good("a"), big, good("b")])) == (3, [])


def test_a_file_that_is_one_endless_line_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "input"
    with path.open("wb") as file:
        for _ in range(3):
            file.write(b"x" * settings.MAX_BODY_BYTES)
        file.write(b"\n{}\n")
    assert list(read(path)) == [(1, None), (2, b"{}\n")]
