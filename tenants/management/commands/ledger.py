from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from tenants import explorer
from tenants.keyset import following
from tenants.management.command import JsonCommand, add_subject, find_key, find_tenant, subject
from tenants.models import LedgerEntry


class Command(JsonCommand):
    help = "The ledger of a tenant, the newest request first: what each request was charged, or that it was not."
    example = "manage.py ledger acme --key 5kQz81LmNb0c --most 20"
    called: ClassVar = {"after": "--after"}

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--key", help="only requests of this key, by its public id")
        parser.add_argument("--model", help="only of this model: a base model, or tenant/adapter")
        parser.add_argument("--after", metavar="ID", help="go on after this request")
        parser.add_argument("--most", type=int, default=50, help="so many entries (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        if not 1 <= options["most"] <= 10_000:
            raise CommandError("--most has to be between 1 and 10000.")
        key = find_key(tenant, options["key"]).public_id if options["key"] else None
        wanted = explorer.Wanted(key=key, model=options["model"])
        own = LedgerEntry.objects.filter(tenant=tenant).select_related(*explorer.JOINED)
        rows = explorer.matching(own, wanted, "admitted_at", request="request_id")
        found, more = following(
            rows, name="request_id", order="-request_id", after=options["after"], limit=options["most"]
        )
        return {"tenant": tenant.slug, "entries": [_row(entry) for entry in found], "more": more}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [
            f"{row['admitted_at']} {row['request']} {row['model']}: {row['kind']}, {row['outcome']}, "
            f"{row['prompt_tokens']} + {row['completion_tokens']} tokens, {row['cost']} micro-units"
            for row in result["entries"]
        ]
        lines += [f"More: --after {result['entries'][-1]['request']}"] if result["more"] else []
        return "\n".join(lines) or f"The ledger of {result['tenant']} has no such entries."


def _row(entry: LedgerEntry) -> dict[str, Any]:
    names = ("kind", "outcome", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")
    version = entry.adapter_version
    return {
        "request": str(entry.request_id),
        "key": entry.key.public_id,
        "model": str(version.adapter) if version is not None else entry.base_model.name,
        **{name: getattr(entry, name) for name in names},
        "finish_reason": entry.finish_reason or None,
        "admitted_at": entry.admitted_at.isoformat(),
        "at": entry.created_at.isoformat(),
    }
