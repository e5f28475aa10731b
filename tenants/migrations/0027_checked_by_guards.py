import django.db.models.deletion
from django.db import migrations, models

from tenants.sql import run_sql_file


class Migration(migrations.Migration):
    """What requests and the ledger name stays by guards, which cost an admission nothing, instead of foreign keys."""

    dependencies = [("tenants", "0026_together")]

    operations = [
        run_sql_file("guards_requests.sql", may_stay=True),
        *(
            migrations.AlterField(
                "inferencerequest",
                name,
                models.ForeignKey(
                    db_constraint=False,
                    db_index=False,
                    null=name in ("adapter_version", "price"),
                    on_delete=django.db.models.deletion.PROTECT,
                    related_name="requests",
                    to=to,
                ),
            )
            for name, to in (
                ("tenant", "tenants.tenant"),
                ("key", "tenants.apikey"),
                ("base_model", "tenants.basemodel"),
                ("adapter_version", "tenants.adapterversion"),
                ("price", "tenants.price"),
            )
        ),
        migrations.AlterField(
            "ledgerentry",
            "request",
            models.OneToOneField(
                db_constraint=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="ledger_entry",
                to="tenants.inferencerequest",
            ),
        ),
    ]
