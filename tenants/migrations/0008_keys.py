import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Coalesce

from tenants.sql import run_sql_file

_OPEN = "SELECT tenants_open_accounts(t.id, NULL, NULL, now()) FROM tenants_tenant t"


class Migration(migrations.Migration):
    dependencies = [("tenants", "0007_audit_and_scopes")]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="allowed_addresses",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=43),
                blank=True,
                editable=False,
                help_text="networks as 203.0.113.0/24 from which alone it may be used; null: from anywhere",
                null=True,
                size=None,
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="first",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="later",
                to="tenants.apikey",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="predecessor",
            field=models.OneToOneField(
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="successor",
                to="tenants.apikey",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="line",
            field=models.GeneratedField(
                db_persist=True,
                expression=Coalesce(models.F("first_id"), models.F("id")),
                output_field=models.BigIntegerField(),
            ),
        ),
        migrations.AddIndex(model_name="apikey", index=models.Index(fields=["line"], name="key_by_line")),
        *(run_sql_file(name) for name in ("guards_keys.sql", "standing.sql", "accounts.sql", "settle.sql")),
        # Accounts of tenants that are older than accounts: only now do the functions find all they speak of.
        migrations.RunSQL(_OPEN, reverse_sql=migrations.RunSQL.noop),
    ]
