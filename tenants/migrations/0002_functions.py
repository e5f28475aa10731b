from django.db import migrations

from tenants.sql import run_sql_file


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    operations = [run_sql_file("guards.sql"), run_sql_file("admit.sql")]
