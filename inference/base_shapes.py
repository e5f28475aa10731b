"""The modules of a base model that an adapter may change. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.model_config import EMBEDDING, HEAD, ModelConfig


@dataclass(frozen=True, slots=True)
class BaseShapes:
    """:param modules: module name → (out_features, in_features), in the model's order. The embedding counts as a linear
    of one-hot rows: (hidden, vocabulary).
    """

    modules: Mapping[str, tuple[int, int]]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BaseShapes:
        """Of a ``config.json``. Raises :class:`~inference.errors.UnsupportedModel` naming the key."""
        return cls.of(ModelConfig.from_json(config))

    @classmethod
    def of(cls, config: ModelConfig) -> BaseShapes:
        vocabulary, hidden = config.vocab_size, config.hidden_size
        return cls({EMBEDDING: (hidden, vocabulary), **config.linears(), HEAD: (vocabulary, hidden)})

    def linears(self) -> set[str]:
        """What PEFT's ``all-linear`` means: every linear but the head."""
        return self.modules.keys() - {EMBEDDING, HEAD}
