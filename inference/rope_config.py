"""How a ``config.json`` stretches the rotary embedding. Torch-free; :mod:`inference.models.rope` has the formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.errors import UnsupportedModel

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every position is divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Wavelengths beyond the trained context are stretched by ``factor``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Slow dimensions are stretched by ``factor``, fast ones kept; :param amplitude: multiplies cosine and sine."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_context: int
    amplitude: float | None
    truncate: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """:param theta: base wavelength. :param scaling: ``None`` for the plain embedding."""

    theta: float
    scaling: RopeScaling | None

    @classmethod
    def from_json(cls, data: dict[str, Any], context: int) -> RopeConfig:
        """Read either spelling: ``rope_theta`` with ``rope_scaling``, or transformers 5's ``rope_parameters``.

        ``dynamic`` changes nothing up to the model's own context, and no more than that is served.

        :param context: ``max_position_embeddings``.
        :raises UnsupportedModel: names the key.
        """
        given = data.get("rope_scaling") or data.get("rope_parameters") or {}
        if not isinstance(given, dict):
            raise UnsupportedModel("config.json: rope_scaling has to be an object")
        theta = given.get("rope_theta") or data.get("rope_theta") or 10_000.0
        for where in (data, given):
            if where.get("partial_rotary_factor") not in (None, 1, 1.0):
                raise UnsupportedModel(
                    f"config.json: partial_rotary_factor {where['partial_rotary_factor']} is not supported"
                )
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind not in ROPE_TYPES:
            raise UnsupportedModel(f"config.json: rope scaling {kind!r}; supported: {', '.join(ROPE_TYPES)}")
        try:
            return cls(float(theta), _scaling(kind, given, data.get("original_max_position_embeddings"), context))
        except KeyError as missing:
            raise UnsupportedModel(f"config.json: rope scaling {kind!r} lacks {missing.args[0]}") from missing
        except (TypeError, ValueError) as error:
            raise UnsupportedModel(f"config.json: rope scaling {kind!r}: {error}") from error


def _scaling(kind: str, given: dict[str, Any], outer_context: int | None, context: int) -> RopeScaling | None:
    if kind in ("default", "dynamic"):
        return None
    factor = float(given["factor"])
    if kind == "linear":
        return LinearScaling(factor)
    original = int(outer_context or given.get("original_max_position_embeddings") or context)
    if kind == "llama3":
        return Llama3Scaling(factor, float(given["low_freq_factor"]), float(given["high_freq_factor"]), original)
    for key in ("mscale", "mscale_all_dim"):
        if given.get(key):
            raise UnsupportedModel(f"config.json: rope scaling 'yarn' with {key} is not supported")
    amplitude = given.get("attention_factor")
    return YarnScaling(
        factor=factor,
        beta_fast=float(given.get("beta_fast") or 32),
        beta_slow=float(given.get("beta_slow") or 1),
        original_context=original,
        amplitude=None if amplitude is None else float(amplitude),
        truncate=bool(given.get("truncate", True)),
    )
