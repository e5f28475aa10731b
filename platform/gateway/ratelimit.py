from __future__ import annotations

from tenants.limit_state import LimitState


def rate_limit_headers(limits: LimitState | None) -> dict[str, str]:
    """OpenAI's ``x-ratelimit-*`` headers, of requests and of tokens; nothing of what is not limited."""
    if limits is None:
        return {}
    headers = {
        **_of("requests", limits.limit_requests, limits.remaining_requests, limits.reset_requests_seconds),
        **_of("tokens", limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_seconds),
    }
    if limits.over_soft_budget:
        headers["x-loraplex-warning"] = "the soft budget of this month is used up"
    return headers


def _of(what: str, limit: int | None, remaining: int | None, reset_seconds: float | None) -> dict[str, str]:
    if limit is None:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(max(remaining or 0, 0)),
        f"x-ratelimit-reset-{what}": duration(reset_seconds or 0.0),
    }


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``17ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
