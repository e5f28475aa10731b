"""What an answer depends on beside the request: the engine's version, the weights, the adapter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


@cache
def engine_version() -> str:
    """Of the package; ``0`` in a checkout that was never installed."""
    try:
        return installed_version("loraplex")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """One worker's.

    :param base: fingerprint of the base model. :param weights: what its weights are held in, such as ``float32``.
    """

    base: str
    weights: str
    engine: str

    def tag(self, adapter: str | None) -> str:
        """OpenAI's ``system_fingerprint``: equal where the same request with the same seed gets the same answer."""
        parts = ["loraplex", self.engine, self.weights, self.base[:12], *([adapter[:12]] if adapter else [])]
        return "-".join(parts)
