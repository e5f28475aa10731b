import django.db.models.deletion
import uuid6
from django.db import migrations, models

from tenants.sql import run_sql_file


class Migration(migrations.Migration):
    dependencies = [("tenants", "0010_adapters")]

    operations = [
        migrations.AlterField(
            "adapterversion",
            "state",
            models.CharField(
                choices=[
                    ("pending", "Pending"),
                    ("checked", "its files are right; a worker has yet to try it"),
                    ("ready", "Ready"),
                    ("rejected", "Rejected"),
                ],
                default="pending",
                max_length=16,
            ),
        ),
        migrations.AddField(
            "adapter",
            "canary",
            models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="tenants.adapterversion",
            ),
        ),
        migrations.AddField("adapter", "canary_percent", models.PositiveSmallIntegerField(default=0, editable=False)),
        migrations.AddField(
            "adapter",
            "auto_promote",
            models.BooleanField(default=True, editable=False, help_text="a new version is current once ready"),
        ),
        migrations.AddField(
            "adapter",
            "pinned",
            models.BooleanField(default=False, editable=False, help_text="workers keep it loaded"),
        ),
        migrations.AddConstraint(
            "adapter",
            models.CheckConstraint(
                condition=models.Q(canary=None, canary_percent=0)
                | models.Q(canary__isnull=False, canary_percent__gte=1, canary_percent__lte=100),
                name="canary_has_a_share",
            ),
        ),
        migrations.CreateModel(
            name="Release",
            fields=[
                ("id", models.UUIDField(default=uuid6.uuid7, editable=False, primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField(help_text="1, 2, 3 … within the adapter")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("automatic", "the newest version, ready"),
                            ("promote", "Promote"),
                            ("canary", "Canary"),
                            ("rollback", "Rollback"),
                        ],
                        max_length=16,
                    ),
                ),
                ("canary_percent", models.PositiveSmallIntegerField(default=0)),
                ("made_by", models.CharField(help_text="the actor, as the audit log has it", max_length=220)),
                ("made_at", models.DateTimeField(auto_now_add=True)),
                (
                    "adapter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="releases", to="tenants.adapter"
                    ),
                ),
                (
                    "canary",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.adapterversion",
                    ),
                ),
                (
                    "previous",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.release"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="releases", to="tenants.tenant"
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.adapterversion"
                    ),
                ),
            ],
            options={
                "ordering": ("-number",),
                "constraints": [models.UniqueConstraint(fields=("adapter", "number"), name="release_number_once")],
            },
        ),
        migrations.CreateModel(
            name="Activation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("passed", "Passed"),
                            ("failed", "Failed"),
                            ("waived", "let through by an operator"),
                        ],
                        default="waiting",
                        max_length=8,
                    ),
                ),
                ("report", models.JSONField(default=dict, help_text="what was found, or what it waits for")),
                (
                    "tries",
                    models.PositiveSmallIntegerField(
                        default=0, help_text="trials that a worker began and did not finish"
                    ),
                ),
                ("tried_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="activations", to="tenants.tenant"
                    ),
                ),
                (
                    "version",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="activation",
                        to="tenants.adapterversion",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(condition=models.Q(state="waiting"), fields=["tried_at"], name="activation_waiting")
                ],
            },
        ),
        run_sql_file("guards_releases.sql"),
    ]
