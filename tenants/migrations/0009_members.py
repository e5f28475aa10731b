from typing import Any

import django.db.models.deletion
import uuid6
from django.conf import settings
from django.db import migrations, models


def _name_members(apps: Any, schema_editor: Any) -> None:
    for member in apps.get_model("tenants", "Member").objects.filter(public_id=None).iterator():
        member.public_id = uuid6.uuid7()
        member.save(update_fields=["public_id"])


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("tenants", "0008_keys"),
    ]

    operations = [
        # A default computed once would give all members there are the same id.
        migrations.AddField("member", "public_id", models.UUIDField(null=True, editable=False)),
        migrations.RunPython(_name_members, migrations.RunPython.noop),
        migrations.AlterField(
            "member",
            "public_id",
            models.UUIDField(default=uuid6.uuid7, editable=False, help_text="its id outside", unique=True),
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                ("id", models.UUIDField(default=uuid6.uuid7, editable=False, primary_key=True, serialize=False)),
                ("email", models.CharField(help_text="in lower case", max_length=150)),
                (
                    "role",
                    models.CharField(
                        choices=[("owner", "Owner"), ("developer", "Developer"), ("viewer", "Viewer")], max_length=16
                    ),
                ),
                (
                    "digest",
                    models.BinaryField(editable=False, help_text="sha256 of the token", max_length=32, unique=True),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("accepted_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "invited_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="invitations",
                        to="tenants.member",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="invitations",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("accepted_at", None), ("revoked_at", None)),
                        fields=("tenant", "email"),
                        name="invitation_open_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Identity",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("issuer", models.CharField(max_length=255)),
                ("subject", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="identities",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "identities",
                "constraints": [models.UniqueConstraint(fields=("issuer", "subject"), name="identity_once")],
            },
        ),
        migrations.CreateModel(
            name="SignInTries",
            fields=[
                (
                    "subject",
                    models.CharField(
                        help_text="account:<hash> or address:<network>",
                        max_length=80,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("left", models.FloatField(help_text="tries left at the time at")),
                ("at", models.DateTimeField(db_index=True)),
            ],
            options={"verbose_name_plural": "sign-in tries"},
        ),
    ]
