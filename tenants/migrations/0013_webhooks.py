import django.contrib.postgres.fields
import django.core.serializers.json
import django.db.models.deletion
import uuid6
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0012_batches"),
    ]

    operations = [
        migrations.CreateModel(
            name="Webhook",
            fields=[
                ("id", models.UUIDField(default=uuid6.uuid7, editable=False, primary_key=True, serialize=False)),
                ("url", models.CharField(max_length=2000)),
                ("description", models.CharField(blank=True, max_length=200)),
                (
                    "events",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        help_text="types of events, or * alone for all of them",
                        size=None,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("active", "Active"),
                            ("paused", "paused by the tenant"),
                            ("disabled", "disabled after long failure"),
                        ],
                        default="active",
                        max_length=8,
                    ),
                ),
                ("secret", models.BinaryField(help_text="sealed")),
                (
                    "previous_secret",
                    models.BinaryField(help_text="sealed; signs as well until previous_until", null=True),
                ),
                ("previous_until", models.DateTimeField(null=True)),
                (
                    "failing_since",
                    models.DateTimeField(help_text="the first failure after the last success", null=True),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="webhooks", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                ("id", models.UUIDField(default=uuid6.uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("delivered", "Delivered"), ("failed", "given up")],
                        default="pending",
                        max_length=9,
                    ),
                ),
                ("tries", models.PositiveSmallIntegerField(default=0, help_text="since the last replay")),
                ("next_try_at", models.DateTimeField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "webhook",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="tenants.webhook",
                    ),
                ),
            ],
            options={"verbose_name_plural": "webhook deliveries"},
        ),
        migrations.CreateModel(
            name="WebhookAttempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("milliseconds", models.PositiveIntegerField()),
                (
                    "status",
                    models.PositiveSmallIntegerField(help_text="of the answer; null: there was none", null=True),
                ),
                (
                    "error",
                    models.CharField(
                        blank=True, help_text="why there was none, or why it was no success", max_length=300
                    ),
                ),
                (
                    "answer",
                    models.CharField(blank=True, help_text="the beginning of the answer's body", max_length=1024),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "delivery",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="tenants.webhookdelivery",
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="WebhookEvent",
            fields=[
                ("id", models.UUIDField(default=uuid6.uuid7, editable=False, primary_key=True, serialize=False)),
                ("type", models.CharField(max_length=64)),
                ("data", models.JSONField(encoder=django.core.serializers.json.DjangoJSONEncoder)),
                ("once", models.CharField(help_text="the same thing is told once", max_length=200, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True, db_index=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="webhook_events",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="webhookdelivery",
            name="event",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="tenants.webhookevent"
            ),
        ),
        migrations.AddConstraint(
            model_name="webhookevent",
            constraint=models.UniqueConstraint(fields=("tenant", "type", "once"), name="webhook_event_once"),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(condition=models.Q(("state", "pending")), fields=["next_try_at"], name="delivery_due"),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(fields=["webhook", "-id"], name="delivery_by_webhook"),
        ),
        migrations.AddConstraint(
            model_name="webhookdelivery",
            constraint=models.UniqueConstraint(fields=("webhook", "event"), name="event_once_per_webhook"),
        ),
    ]
