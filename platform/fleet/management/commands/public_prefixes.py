from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from fleet import prefix_placement, public_prefixes
from fleet.models import PublicPrefix
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = (
        "List the public prefixes and ask the workers which of them they have. With --place, put them there first; "
        "Celery does that every ten seconds."
    )
    example = "manage.py public_prefixes --place"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--place", action="store_true", help="declare at the workers what they lack first")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        done = prefix_placement.reconcile() if options["place"] else []
        rows = list(PublicPrefix.objects.select_related("base_model", "adapter__tenant").order_by("name"))
        standing = prefix_placement.standing()
        problems = None if done is None else [f"{one.worker}: {text}" for one in done for text in one.problems]
        return {"prefixes": [_shown(prefix, standing) for prefix in rows], "problems": problems}

    def problem(self, result: dict[str, Any]) -> str | None:
        if result["problems"] is None:
            return "Another round is under way; try again."
        return "; ".join(result["problems"]) or None

    def describe(self, result: dict[str, Any]) -> str:
        lines = []
        for row in result["prefixes"]:
            whose = row["adapter"] or row["model"]
            lines.append(f"{row['name']} ({whose}): {row['shared_tokens']} shared tokens; {row['text'][:60]!r}")
            lines += [f"  {worker}: {_WORDS[there]}" for worker, there in row["workers"].items()]
        return "\n".join(lines) or "No prefix is public (declare_public_prefix)."


_WORDS = {True: "has it", False: "lacks it", None: "does not answer"}


def _shown(prefix: PublicPrefix, standing: dict[str, dict[str, bool | None]]) -> dict[str, Any]:
    return {
        "name": prefix.name,
        "model": prefix.base_model.name,
        "adapter": prefix.adapter and str(prefix.adapter),
        "text": public_prefixes.text(prefix),
        "tokens": len(prefix.tokens),
        "shared_tokens": public_prefixes.shared_tokens(prefix),
        "workers": standing.get(prefix.name, {}),
    }
