"""The gateway with other times: the overview's rounds are shorter, since its tests wait for one or two of them; where
that is said, so are the time for which a lease is trusted and how long an ending process lets requests finish.
"""

from __future__ import annotations

import os

from gateway.asgi import application  # sets Django up

# isort: split
from console import live
from gateway import lifespan, services

__all__ = ["application"]

live.EVERY_SECONDS = float(os.environ["ROUND_SECONDS"])
lifespan.DRAIN_SECONDS = float(os.environ.get("DRAIN_SECONDS", lifespan.DRAIN_SECONDS))
services.TRUST_SECONDS = float(os.environ.get("TRUST_SECONDS", services.TRUST_SECONDS))
