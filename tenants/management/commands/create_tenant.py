from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandParser

from tenants import provisioning
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_plan, subject
from tenants.models import Plan


class Command(JsonCommand):
    help = "Create a tenant, and allow it the default base model (the one registered first)."
    example = "manage.py create_tenant acme --display-name 'Acme Ltd'"
    called: ClassVar = {"slug": "name", "display_name": "--display-name"}

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "name", "short name: lower-case letters, digits, hyphens; the part before / in model ids")
        parser.add_argument("--display-name", default="", help="name for people; the short name if left out")
        parser.add_argument("--plan", default=Plan.STANDARD, help="name of its plan (default: %(default)s)")
        parser.add_argument("--no-models", action="store_true", help="allow it no base model yet")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        slug = subject(options, "name")
        tenant = provisioning.create(
            of_command(),
            slug,
            display_name=options["display_name"],
            plan=find_plan(options["plan"]),
            base_models=() if options["no_models"] else None,
        )
        allowed = tenant.model_allowances.values_list("base_model__name", flat=True)
        return {
            "tenant": tenant.slug,
            "id": str(tenant.pk),
            "plan": tenant.plan.name,
            "models": list(allowed),
            "limits": tenant.effective_limits(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        models = ", ".join(result["models"]) or "no base model yet (allow_model)"
        return f"Created {result['tenant']} on plan {result['plan']}; it may use {models}."
