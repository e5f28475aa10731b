from django.db import migrations

from tenants.sql import run_sql_file

# Entries of earlier versions take the time of admission from their request; nobody else may change an entry.
_BACKFILL = """
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE tenants_ledgerentry DISABLE TRIGGER USER;
UPDATE tenants_ledgerentry l SET admitted_at = r.admitted_at FROM tenants_inferencerequest r WHERE r.id = l.request_id;
ALTER TABLE tenants_ledgerentry ENABLE TRIGGER USER;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_accounts")]

    operations = [
        migrations.RunSQL(_BACKFILL, reverse_sql=migrations.RunSQL.noop),
        *(
            run_sql_file(name)
            for name in (
                "guards.sql",
                "guards_money.sql",
                "price.sql",
                "permit.sql",
                "standing.sql",
                "accounts.sql",
                "admit.sql",
                "settle.sql",
                "rollup.sql",
            )
        ),
    ]
