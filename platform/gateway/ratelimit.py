from __future__ import annotations

from tenants.admission import LimitState


def rate_limit_headers(limits: LimitState | None) -> dict[str, str]:
    """OpenAI's ``x-ratelimit-*`` headers; nothing where the tenant's requests are not limited."""
    if limits is None or limits.limit_requests is None:
        return {}
    return {
        "x-ratelimit-limit-requests": str(limits.limit_requests),
        "x-ratelimit-remaining-requests": str(limits.remaining_requests or 0),
        "x-ratelimit-reset-requests": duration(limits.reset_requests_seconds or 0.0),
    }


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``17ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
