"""What every contender computes: the same prompts, the same adapters, the same number of tokens.

Sixteen requests in flight, prompts of :data:`PROMPT_TOKENS` tokens that share no prefix with each other or with an
earlier round (a prefix cache must not flatter us), :data:`OUTPUT_TOKENS` greedy tokens each, end tokens ignored.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from inference.prompt import PromptRenderer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
IN_FLIGHT = 16
PROMPT_TOKENS = 70
OUTPUT_TOKENS = 64
ADAPTERS = 8
RANK = 8

WORDS = " ".join(
    (
        "time year people way day man thing woman life child world school state family student group country problem",
        "hand part place case week company system program question work number night point home water room mother area",
        "money story fact month lot right study book eye job word business issue side kind head house service friend",
        "father power hour game line end member law car city community name president team minute idea body",
        "information back parent face others level office door health person art war history party result change",
        "morning reason research",
    )
).split()


@cache
def _tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def prompts(model_dir: Path, round_number: int, count: int = IN_FLIGHT) -> list[str]:
    """``count`` texts of exactly ``PROMPT_TOKENS`` tokens, different in every round."""
    rng = random.Random(round_number)
    tokenizer = _tokenizer(model_dir)
    texts = []
    while len(texts) < count:
        text = " ".join(rng.choices(WORDS, k=PROMPT_TOKENS))
        if len(tokenizer.encode(text, add_special_tokens=False).ids) == PROMPT_TOKENS:
            texts.append(text)
    return texts


def encode(model_dir: Path, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in _tokenizer(model_dir).encode_batch(texts, add_special_tokens=False)]


def check_prompts(model_dir: Path) -> list[list[int]]:
    """Sixteen questions, for the exactness check: after random words the model soon repeats one word."""
    lines = (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()[:IN_FLIGHT]
    renderer = PromptRenderer.load(model_dir)
    return [renderer.encode_chat([{"role": "user", "content": json.loads(line)["question"]}]) for line in lines]


def adapter_name(row: int) -> str:
    """Which of the adapters ``a0`` … row number ``row`` of a mixed batch uses: neighbours never share one."""
    return f"a{row % ADAPTERS}"
