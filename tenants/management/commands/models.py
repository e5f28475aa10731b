from __future__ import annotations

from typing import Any

from django.db.models import Count

from tenants.management.command import JsonCommand
from tenants.models import BaseModel


class Command(JsonCommand):
    help = "List base models: state, context, how many tenants may use each."
    example = "manage.py models"

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        rows = BaseModel.objects.annotate(tenants=Count("allowances")).order_by("name")
        found = [
            {
                "model": model.name,
                "state": model.state,
                "context_length": model.context_length,
                "fingerprint": model.fingerprint,
                "directory": model.directory,
                "tenants": model.tenants,
            }
            for model in rows
        ]
        return {"models": found}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [
            f"{row['model']:<32} {row['state']:<8} context {row['context_length']:>7}  {row['tenants']:>5} tenants"
            for row in result["models"]
        ]
        return "\n".join(lines) or "No base model is registered (register_model)."
