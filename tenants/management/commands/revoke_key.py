from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from tenants import keys
from tenants.errors import InvalidKey, NotConfigured
from tenants.management.command import JsonCommand, add_subject, subject
from tenants.models import ApiKey


class Command(JsonCommand):
    help = "Revoke an API key: new requests are refused at once, running ones are stopped within seconds."
    example = "manage.py revoke_key 5kQz81LmNb0c"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "key", "the key's public id (between the underscores), or the whole key")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        text = subject(options, "key")
        try:
            public_id = keys.parse(text).public_id
        except InvalidKey:
            public_id = text
        key = ApiKey.objects.unscoped().select_related("tenant").filter(public_id=public_id).first()
        if key is None:
            raise NotConfigured("There is no such key.")
        if key.revoked_at is None:
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
        return {"tenant": key.tenant.slug, "public_id": key.public_id, "revoked_at": key.revoked_at.isoformat()}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Key {result['public_id']} of {result['tenant']} is revoked since {result['revoked_at']}."
