"""Why was a request refused, and what helps: for people."""

from __future__ import annotations

_WHOSE = {"tenant": "the account", "member": "the key's member", "key": "the key"}

_BY_LIMIT = {
    "requests_per_minute": "Requests came faster than this rate. Wait as the answer's Retry-After says, or raise it.",
    "tokens_per_minute": "Prompts and max_tokens came faster than this rate. Ask for fewer, or raise it.",
    "max_concurrent": "So many requests ran at once. Let some end first, or raise it.",
    "tokens_per_day": "The day's tokens are used up until midnight UTC, or a smaller max_tokens fits.",
    "tokens_per_month": "The month's tokens are used up until the first of the next month (UTC), or it is raised.",
    "budget_hard": (
        "Too little is left of the month's budget: it is spent, or held by running requests. Raise it, wait for the "
        "next month, or ask for fewer tokens (max_tokens)."
    ),
    "max_input_tokens": "The prompt is longer than any request may have. Shorten it.",
    "max_output_tokens": "max_tokens is larger than any request may ask for. Ask for less.",
}

_BY_CODE = {
    "context_length_exceeded": "The prompt and max_tokens do not fit into the model's context. Shorten either.",
    "tenant_suspended": "An operator of the platform can lift this.",
    "address_not_allowed": "The key is kept to other addresses. Whoever may change the key can change them.",
    "key_revoked": "Somebody uses a key that was revoked. Give them a new one, or find out who they are.",
    "key_expired": "The key's time is over. Issue a new one, or rotate earlier.",
    "model_not_found": "No such model, or none that this key may use. Look for the name under models and adapters.",
    "overloaded": "No worker had room. The same request may be sent again; if it stays so, there are too few workers.",
}


def whose(subject: str) -> str:
    """Whose limit it was; ``""`` where it was none."""
    return _WHOSE.get(subject, "")


def advice(code: str, limit: str) -> str:
    """What to do about it; ``""`` where the message says all there is."""
    return _BY_LIMIT.get(limit) or _BY_CODE.get(code, "")
