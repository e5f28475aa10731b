import django.db.models.deletion
import uuid6
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_webhooks")]

    operations = [
        migrations.CreateModel(
            name="ReconciliationRun",
            fields=[
                ("id", models.UUIDField(default=uuid6.uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "tenant",
                    models.CharField(
                        blank=True, help_text="slug of the only tenant looked at; empty: all", max_length=63
                    ),
                ),
                ("asked_by", models.CharField(max_length=250)),
                (
                    "state",
                    models.CharField(
                        choices=[("queued", "Queued"), ("done", "Done"), ("failed", "Failed")],
                        default="queued",
                        max_length=8,
                    ),
                ),
                ("asked_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("ok", models.BooleanField(null=True)),
                ("result", models.JSONField(default=dict, help_text="totals and findings")),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "queued")), fields=["asked_at"], name="reconciliation_queued"
                    )
                ],
            },
        ),
        migrations.AlterField(
            model_name="auditentry",
            name="tenant",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="audit",
                to="tenants.tenant",
            ),
        ),
    ]
