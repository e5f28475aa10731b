"""Batched LoRA for rows that use different adapters; ``naive.py`` is the specification, ``README.md`` the maths."""

from sgmv.embedding import EmbeddingSite, EmbeddingWeights
from sgmv.errors import SgmvArgumentError
from sgmv.fixed_plan import FixedPlan
from sgmv.gain import Gain, GainRows
from sgmv.naive import sgmv_naive
from sgmv.operands import LaidOut, laid_bytes
from sgmv.ops import Site, backends, make_embedding, make_gain, make_site, register_backend
from sgmv.plan import Plan
from sgmv.step_numbers import StepNumbers
from sgmv.storage import FP8, Storage
from sgmv.weights import SlotWeights

__all__ = [
    "FP8",
    "EmbeddingSite",
    "EmbeddingWeights",
    "FixedPlan",
    "Gain",
    "GainRows",
    "LaidOut",
    "Plan",
    "SgmvArgumentError",
    "Site",
    "SlotWeights",
    "StepNumbers",
    "Storage",
    "backends",
    "laid_bytes",
    "make_embedding",
    "make_gain",
    "make_site",
    "register_backend",
    "sgmv_naive",
]
