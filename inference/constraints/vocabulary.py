"""The model's tokens as llguidance sees them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from inference.errors import ConfigError


class Vocabulary:
    """Built once a process, in about 0.2 s for 49,152 tokens; holds no lock while matchers work.

    :ivar size: tokens that the model knows; :ivar eos_token_ids: those that end a text.
    """

    def __init__(self, tokenizer_json: str, *, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        """:raises ConfigError: llguidance cannot read the tokenizer, or the model has no end token."""
        if not eos_token_ids:
            raise ConfigError("the model has no end token, so that no text could be ended")
        self.size, self.eos_token_ids = vocab_size, frozenset(eos_token_ids)
        try:
            self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=sorted(eos_token_ids))
        except ValueError as error:
            raise ConfigError(f"llguidance cannot read this tokenizer: {error}") from error
        # A step's fuel is about 7 ms of lexing at worst, a matcher's states about 100 MB.
        self._limits = LLParserLimits(
            step_lexer_fuel=100_000, step_max_items=50_000, max_lexer_states=50_000, verbose_errors=False
        )

    @classmethod
    def load(cls, model_dir: Path, *, vocab_size: int, eos_token_ids: Collection[int]) -> Vocabulary:
        """From a model store directory."""
        text = (model_dir / "tokenizer.json").read_text(encoding="utf-8")
        return cls(text, vocab_size=vocab_size, eos_token_ids=eos_token_ids)

    def matcher(self, grammar: str) -> LLMatcher:
        """Compiles; the interpreter's lock is free meanwhile. Raises nothing: the result knows its error."""
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, for tests and tools."""
        return self._tokenizer.tokenize_str(text)
