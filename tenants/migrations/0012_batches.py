import django.db.models.deletion
from django.db import migrations, models

import tenants.models.batch
import tenants.models.file
from tenants.sql import run_sql_file


class Migration(migrations.Migration):
    dependencies = [("tenants", "0011_activation")]

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=tenants.models.batch.new_batch_id,
                        editable=False,
                        max_length=40,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("endpoint", models.CharField(max_length=64)),
                ("completion_window", models.CharField(default="24h", max_length=8)),
                ("input_file_id", models.CharField(max_length=40)),
                ("output_file_id", models.CharField(max_length=40, null=True)),
                ("error_file_id", models.CharField(max_length=40, null=True)),
                (
                    "output_seconds",
                    models.PositiveIntegerField(help_text="how long its output files are kept", null=True),
                ),
                ("metadata", models.JSONField(default=dict)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("validating", "Validating"),
                            ("failed", "Failed"),
                            ("in_progress", "In Progress"),
                            ("finalizing", "Finalizing"),
                            ("completed", "Completed"),
                            ("expired", "Expired"),
                            ("cancelling", "Cancelling"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="validating",
                        max_length=12,
                    ),
                ),
                ("errors", models.JSONField(default=list, help_text="why it failed: [{code, message, param, line}]")),
                ("total", models.PositiveIntegerField(default=0)),
                ("completed", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("cached_tokens", models.PositiveBigIntegerField(default=0)),
                ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("in_progress_at", models.DateTimeField(null=True)),
                ("finalizing_at", models.DateTimeField(null=True)),
                ("completed_at", models.DateTimeField(null=True)),
                ("failed_at", models.DateTimeField(null=True)),
                ("expired_at", models.DateTimeField(null=True)),
                ("cancelling_at", models.DateTimeField(null=True)),
                ("cancelled_at", models.DateTimeField(null=True)),
                ("runner", models.CharField(blank=True, max_length=32)),
                ("held_until", models.DateTimeField(null=True)),
                (
                    "resume_at",
                    models.DateTimeField(
                        help_text="not before: its tenant's limits leave no room until then", null=True
                    ),
                ),
                ("worked_at", models.DateTimeField(help_text="when it was last taken up", null=True)),
                (
                    "key",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="batches",
                        to="tenants.apikey",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="batches",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "batches",
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="BatchResult",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("line", models.PositiveIntegerField(help_text="from 1, as in the input file")),
                ("answered", models.BooleanField(help_text="for the output file; else for the error file")),
                ("request_id", models.UUIDField(help_text="the request that was charged", null=True)),
                ("body", models.BinaryField(help_text="one line of JSON, without its end")),
                (
                    "batch",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="results",
                        to="tenants.batch",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="File",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=tenants.models.file.new_file_id,
                        editable=False,
                        max_length=40,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "filename",
                    models.CharField(help_text="what the client called it; never part of a path", max_length=255),
                ),
                (
                    "purpose",
                    models.CharField(
                        choices=[("batch", "uploaded as a batch's input"), ("batch_output", "written by a batch")],
                        max_length=16,
                    ),
                ),
                ("num_bytes", models.PositiveBigIntegerField()),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(db_index=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="files",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(fields=["tenant", "-id"], name="batch_by_tenant"),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(
                condition=models.Q(("status__in", ("validating", "in_progress", "finalizing", "cancelling"))),
                fields=["tenant", "worked_at"],
                name="batch_unfinished",
            ),
        ),
        migrations.AddConstraint(
            model_name="batchresult",
            constraint=models.UniqueConstraint(fields=("batch", "line"), name="batch_line_once"),
        ),
        migrations.AddIndex(
            model_name="file",
            index=models.Index(fields=["tenant", "-id"], name="file_by_tenant"),
        ),
        run_sql_file("batches.sql"),
    ]
