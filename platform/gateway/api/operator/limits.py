"""Limits as operators write them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.api.limit_fields import LimitFields, Money


class LimitsBody(LimitFields):
    """What is named changes; ``null`` takes a limit back: then the plan's holds, or none."""

    max_adapters: Annotated[Money, Field(description="Adapters that are not deleted.")] = None
    max_adapter_versions: Annotated[Money, Field(description="Versions of all adapters.")] = None
    max_adapter_bytes: Annotated[Money, Field(description="Bytes of all versions' files and of open uploads.")] = None
