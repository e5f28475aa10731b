from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet

from tenants.management.command import JsonCommand, add_subject, only_tenant
from tenants.models import AuditEntry

MOST = 10_000


class Command(JsonCommand):
    help = "The audit log, newest first: who changed what, from what to what, from where."
    example = "manage.py audit acme --subject 5kQz81LmNb0c --most 20"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "only what belongs to it, by its short name; default: everybody")
        parser.add_argument("--platform", action="store_true", help="only what belongs to no tenant")
        parser.add_argument("--subject", help="only what was done to this object")
        parser.add_argument("--action", help="only this action, such as key.revoked")
        parser.add_argument("--most", type=int, default=50, help="so many entries (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if not 1 <= options["most"] <= MOST:
            raise CommandError(f"--most has to be between 1 and {MOST}.")
        tenant = only_tenant(options)
        if tenant is not None and options["platform"]:
            raise CommandError("A tenant and --platform exclude each other.")
        rows: QuerySet[AuditEntry] = AuditEntry.objects.unscoped().select_related("tenant")
        if tenant is not None:
            rows = rows.filter(tenant=tenant)
        if options["platform"]:
            rows = rows.filter(tenant=None)
        for name in ("subject", "action"):
            if options[name]:
                rows = rows.filter(**{name: options[name]})
        return {"entries": [_shown(entry) for entry in rows.order_by("-id")[: options["most"]]]}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [
            f"{e['at']}  {e['tenant'] or '—':<16} {e['actor']} {e['address'] or ''}: {e['action']} {e['subject']}"
            f"  {e['before'] or ''} → {e['after'] or ''}"
            for e in result["entries"]
        ]
        return "\n".join(lines) or "Nothing is recorded."


def _shown(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": str(entry.pk),
        "at": entry.at.isoformat(),
        "tenant": entry.tenant.slug if entry.tenant is not None else None,
        "actor": f"{entry.actor_kind} {entry.actor_name}",
        "address": entry.address,
        "action": entry.action,
        "subject": entry.subject,
        "before": entry.before,
        "after": entry.after,
    }
