import uuid6
from django.core import validators
from django.db import migrations, models

from tenants.sql import run_sql_file


def quota(explanation: str) -> "models.PositiveBigIntegerField[int | None, int | None]":
    return models.PositiveBigIntegerField(
        null=True,
        blank=True,
        validators=[validators.MinValueValidator(0), validators.MaxValueValidator(4611686018427387904)],
        help_text=explanation,
    )


QUOTAS = [
    ("max_adapters", "adapters that are not deleted"),
    ("max_adapter_versions", "versions of all adapters, rejected ones included, deleted ones not"),
    ("max_adapter_bytes", "bytes of all versions' files and of open uploads"),
]


class Migration(migrations.Migration):
    dependencies = [("tenants", "0009_members")]

    operations = [
        *(migrations.AddField(model, name, quota(text)) for model in ("plan", "tenant") for name, text in QUOTAS),
        # Plan.standard() has quotas; a plan that exists already keeps what it allows.
        migrations.AlterModelOptions("adapter", {"default_manager_name": "objects", "ordering": ("tenant", "name")}),
        migrations.AlterModelOptions(
            "adapterversion", {"default_manager_name": "objects", "ordering": ("adapter", "-number")}
        ),
        migrations.AddField("adapter", "deleted_at", models.DateTimeField(blank=True, editable=False, null=True)),
        migrations.AddField(
            "adapterversion", "deleted_at", models.DateTimeField(blank=True, editable=False, null=True)
        ),
        migrations.AddField(
            "adapterversion",
            "golden",
            models.JSONField(blank=True, null=True, help_text="golden prompts and PEFT's answers, from the uploader"),
        ),
        migrations.AddField(
            "adapterversion",
            "stored_bytes",
            models.PositiveBigIntegerField(default=0, help_text="of its files; counts against the quota"),
        ),
        migrations.AlterField(
            "adapterversion", "num_bytes", models.PositiveBigIntegerField(default=0, help_text="of tensor data")
        ),
        migrations.AlterField(
            "adapterversion",
            "report",
            models.JSONField(
                default=dict,
                help_text='when rejected: {"message", "field", "problems": [{"message", "field", "advice"}]}',
            ),
        ),
        migrations.RemoveConstraint("adapter", "adapter_name_once_per_tenant"),
        migrations.RemoveConstraint("adapterversion", "same_content_same_version"),
        migrations.AddConstraint(
            "adapter",
            models.UniqueConstraint(
                condition=models.Q(("deleted_at", None)),
                fields=("tenant", "name"),
                name="adapter_name_once_per_tenant",
            ),
        ),
        migrations.AddConstraint(
            "adapterversion",
            models.UniqueConstraint(
                condition=models.Q(("deleted_at", None), ("state", "ready")),
                fields=("adapter", "digest"),
                name="same_content_same_version",
            ),
        ),
        migrations.CreateModel(
            name="AdapterUpload",
            fields=[
                ("id", models.UUIDField(default=uuid6.uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "tenant",
                    models.ForeignKey("tenants.tenant", on_delete=models.PROTECT, related_name="adapter_uploads"),
                ),
                ("name", models.CharField(help_text="the adapter's name", max_length=63)),
                ("base_model", models.ForeignKey("tenants.basemodel", on_delete=models.PROTECT, related_name="+")),
                ("files", models.JSONField(help_text='what was declared: [{"name", "size", "sha256"}]')),
                ("num_bytes", models.PositiveBigIntegerField(help_text="of all files together, as declared")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("completed", "Completed"),
                            ("cancelled", "Cancelled"),
                            ("expired", "Expired"),
                        ],
                        default="open",
                        max_length=16,
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        "tenants.adapterversion", null=True, on_delete=models.PROTECT, related_name="uploads"
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(condition=models.Q(("state", "open")), fields=["tenant"], name="upload_open")],
            },
        ),
        run_sql_file("guards_versions.sql"),
        run_sql_file("permit.sql"),
    ]
