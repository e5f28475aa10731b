from django.db import migrations, models

from tenants.sql import run_sql_file


class Migration(migrations.Migration):
    dependencies = [("tenants", "0015_indexes")]

    operations = [
        migrations.AddField(
            "inferencerequest",
            "first_token_ms",
            models.PositiveIntegerField(help_text="from admission to the first token", null=True),
        ),
        migrations.AddField(
            "inferencerequest",
            "queue_ms",
            models.PositiveIntegerField(help_text="in the worker's queue, by the worker", null=True),
        ),
        migrations.AddField(
            "inferencerequest",
            "prefill_ms",
            models.PositiveIntegerField(help_text="from there to the first token, by the worker", null=True),
        ),
        run_sql_file("settle.sql"),
        run_sql_file("batches.sql"),
    ]
