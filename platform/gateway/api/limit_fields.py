from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.api.mutations import Body
from tenants.models.limits import MOST

Small = Annotated[int, Field(ge=1, le=2**31 - 1)] | None
Quota = Annotated[int, Field(ge=1, le=MOST)] | None
Money = Annotated[int, Field(ge=0, le=MOST)] | None


class LimitFields(Body):
    """A body's ``limits``: what is left out stays as it is, ``null`` takes a limit back."""

    requests_per_minute: Annotated[Small, Field(description="Requests admitted per minute; `null`: no limit.")] = None
    tokens_per_minute: Annotated[Small, Field(description="Prompt and output together.")] = None
    max_concurrent: Annotated[Small, Field(description="Requests running at once.")] = None
    tokens_per_day: Annotated[Quota, Field(description="Per day (UTC), prompt and output.")] = None
    tokens_per_month: Annotated[Quota, Field(description="Per month (UTC), prompt and output.")] = None
    budget_soft: Annotated[Money, Field(description="Micro-units per month (UTC): a warning from there on.")] = None
    budget_hard: Annotated[Money, Field(description="Micro-units per month (UTC): requests beyond are refused.")] = None
    max_input_tokens: Annotated[Small, Field(description="Prompt tokens of one request.")] = None
    max_output_tokens: Annotated[Small, Field(description="Generated tokens of one request, over its choices.")] = None

    def changes(self) -> dict[str, int | None]:
        return self.model_dump(exclude_unset=True)
