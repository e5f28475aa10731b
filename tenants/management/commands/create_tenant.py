from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from tenants.errors import NotConfigured
from tenants.management.command import JsonCommand, add_subject, find_plan, subject
from tenants.models import BaseModel, ModelAllowance, Plan, Tenant


class Command(JsonCommand):
    help = "Create a tenant, and allow it the default base model (the one registered first)."
    example = "manage.py create_tenant acme --display-name 'Acme Ltd'"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "name", "short name: lower-case letters, digits, hyphens; the part before / in model ids")
        parser.add_argument("--display-name", default="", help="name for people; the short name if left out")
        parser.add_argument("--plan", default=Plan.STANDARD, help="name of its plan (default: %(default)s)")
        parser.add_argument("--no-models", action="store_true", help="allow it no base model yet")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        slug = subject(options, "name")
        if Tenant.objects.filter(slug=slug).exists():
            raise NotConfigured(f"There is a tenant {slug!r} already.")
        with transaction.atomic():
            tenant = Tenant(slug=slug, display_name=options["display_name"] or slug, plan=find_plan(options["plan"]))
            tenant.full_clean()
            tenant.save()
            default = None if options["no_models"] else BaseModel.objects.filter(state="active").order_by("pk").first()
            if default is not None:
                ModelAllowance.objects.create(tenant=tenant, base_model=default)
        return {
            "tenant": tenant.slug,
            "id": str(tenant.pk),
            "plan": tenant.plan.name,
            "models": [default.name] if default else [],
            "limits": tenant.effective_limits(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        models = ", ".join(result["models"]) or "no base model yet (allow_model)"
        return f"Created {result['tenant']} on plan {result['plan']}; it may use {models}."
