from django.db import migrations, models


class Migration(migrations.Migration):
    """For lists at a million requests. Admission waits while the larger ones are made: about a second a million rows."""

    dependencies = [("tenants", "0014_operators")]

    operations = [
        migrations.AddIndex("adapterversion", models.Index(fields=["digest"], name="version_by_digest")),
        migrations.AddIndex("inferencerequest", models.Index(fields=["key", "id"], name="request_by_key")),
        migrations.AddIndex("ledgerentry", models.Index(fields=["key", "request"], name="ledger_by_key")),
        migrations.AddIndex(
            "ledgerentry",
            models.Index(
                condition=models.Q(("outcome", "completed"), _negated=True),
                fields=["tenant", "outcome", "request"],
                name="ledger_tenant_not_completed",
            ),
        ),
        migrations.AddIndex(
            "ledgerentry",
            models.Index(
                condition=models.Q(("outcome", "completed"), _negated=True),
                fields=["outcome", "request"],
                name="ledger_not_completed",
            ),
        ),
    ]
