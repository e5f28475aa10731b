from django.db import migrations

from tenants.sql import run_sql_file


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    # The functions of admission and settlement come with the tables they stand on, in 0005.
    operations = [run_sql_file("guards.sql")]
