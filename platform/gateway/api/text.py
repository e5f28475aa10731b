from __future__ import annotations

from typing import Annotated

from pydantic import Field

Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""What PostgreSQL can keep, and look for."""
