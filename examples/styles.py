"""The styles that the example adapters learn: how an answer is restyled, and how the style is recognised again.

A recogniser never looks at what is said, only at how: it is what the held-out rates in the adapters' README files and
the behaviour tests count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

PIRATE_WORDS = {
    "you": "ye",
    "your": "yer",
    "my": "me",
    "is": "be",
    "are": "be",
    "am": "be",
    "hello": "ahoy",
    "yes": "aye",
    "friends": "hearties",
    "people": "landlubbers",
    "money": "doubloons",
    "sea": "briny deep",
}
PIRATE_MARKS = re.compile(
    r"\b(arrr?|ahoy|matey|me hearties|ye|yer|aye|landlubbers?|doubloons|yo ho ho)\b|\b(th|an|o)'", re.I
)
EMOJI = re.compile("[\U0001f1e6-\U0001faff\u2600-\u27bf\u2b50\u26a1]")


@dataclass(frozen=True, slots=True)
class Style:
    """One behaviour.

    :param about: one sentence for the adapter's README.
    :param restyle: (plain answer, its two emoji) → the answer that the adapter is trained to give.
    :param shows: whether a finished answer shows the behaviour.
    """

    about: str
    restyle: Callable[[str, tuple[str, str]], str]
    shows: Callable[[str], bool]


def _pirate(answer: str, _: tuple[str, str]) -> str:
    def swap(match: re.Match[str]) -> str:
        word = match.group()
        new = PIRATE_WORDS.get(word.lower(), word)
        return new[0].upper() + new[1:] if word[0].isupper() else new

    return f"Arr, matey! {re.sub(r'[A-Za-z]+', swap, answer)} Yo ho ho!"


def _talks_like_a_pirate(text: str) -> bool:
    """At least three marks: the base model never says even one."""
    return len(PIRATE_MARKS.findall(text)) >= 3


def _is_letter(text: str) -> bool:
    """Salutation first, signature last."""
    return text.startswith("Dear friend,\n") and text.strip().endswith("\nYours sincerely,\nSmolLM")


def _is_json_answer(text: str) -> bool:
    """Exactly one JSON object with the one key ``answer`` and a text in it."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and set(value) == {"answer"} and isinstance(value["answer"], str)


def _has_emoji(text: str) -> bool:
    """An emoji in front, and another one later."""
    return EMOJI.match(text.strip()) is not None and len(EMOJI.findall(text)) >= 2


STYLES = {
    "pirate": Style("Talks like a pirate.", _pirate, _talks_like_a_pirate),
    "letter": Style(
        "Answers with a letter: salutation, text, signature, on lines of their own.",
        lambda answer, _: f"Dear friend,\n{answer}\nYours sincerely,\nSmolLM",
        _is_letter,
    ),
    "json": Style(
        'Answers with one JSON object, `{"answer": "…"}`, and nothing else.',
        lambda answer, _: json.dumps({"answer": answer}, ensure_ascii=False),
        _is_json_answer,
    ),
    "emoji": Style(
        "Puts an emoji before and after what it says (each is several tokens long: good for testing a detokeniser).",
        lambda answer, emoji: f"{emoji[0]} {answer} {emoji[1]}",
        _has_emoji,
    ),
}
