from django.db import migrations, models

from tenants.sql import run_sql_file


class Migration(migrations.Migration):
    """What of a running request's prompt was cached, for those whose gateway dies."""

    dependencies = [("tenants", "0021_shared_waits")]

    operations = [
        migrations.AddField(
            "inferencerequest",
            "cached_tokens",
            models.IntegerField(
                db_default=0, default=0, help_text="durable count of the prompt's tokens that came from the cache"
            ),
        ),
        run_sql_file("settle.sql"),
    ]
