"""Batched LoRA for rows that use different adapters; ``naive.py`` is the specification, ``README.md`` the maths."""

from sgmv.embedding import EmbeddingSite, EmbeddingWeights
from sgmv.errors import SgmvArgumentError
from sgmv.gain import Gain, GainRows
from sgmv.naive import sgmv_naive
from sgmv.ops import Site, backends, make_site, register_backend
from sgmv.plan import Plan
from sgmv.weights import SlotWeights

__all__ = [
    "EmbeddingSite",
    "EmbeddingWeights",
    "Gain",
    "GainRows",
    "Plan",
    "SgmvArgumentError",
    "Site",
    "SlotWeights",
    "backends",
    "make_site",
    "register_backend",
    "sgmv_naive",
]
