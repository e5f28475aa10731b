from django.db import migrations

from tenants.sql import admission_files, run_sql_file


class Migration(migrations.Migration):
    """Several requests' admissions, or settlements, in one statement."""

    dependencies = [("tenants", "0025_accounts_of_new_keys")]

    operations = [*admission_files(), run_sql_file("together.sql", may_stay=True)]
