from __future__ import annotations

from uuid import UUID

from gateway.errors import ApiError
from tenants.access import Access
from tenants.db import Pool
from tenants.denials import note_refusal


def record(pool: Pool, access: Access, error: ApiError, request_id: UUID, model: str = "") -> None:
    """Count what admission did not see and yet concerns models, limits and places; see :mod:`tenants.denials`."""
    if error.code in {"model_not_found", "context_length_exceeded"} or error.status in {429, 503}:
        context = error.code == "context_length_exceeded"  # named as admission names it
        note_refusal(
            pool,
            access.tenant_id,
            access.key_id,
            error.code or "",
            error.message,
            limit="context_length" if context else "",
            subject="model" if context else "",
            model=model,
            request_id=request_id,
        )
