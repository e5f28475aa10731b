import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """Keys called ``playground`` from before stay ordinary keys: somebody may hold the text of one of that name."""

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("tenants", "0018_request_indexes"),
    ]

    operations = [
        migrations.AddField(
            "apikey",
            "playground_of",
            models.ForeignKey(
                db_index=False,
                editable=False,
                help_text="who tries models with it while signed in; null: any other key",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddIndex(
            "apikey",
            models.Index(
                condition=models.Q(("playground_of", None), _negated=True),
                fields=["playground_of", "tenant"],
                name="key_by_player",
            ),
        ),
    ]
