from django.db import migrations

from tenants.sql import admission_files


class Migration(migrations.Migration):
    """A tenant's day does not go back with the clock.

    What today's files read of an account is added here as well: a database that 0021 was run on before it did so.
    """

    dependencies = [("tenants", "0022_cached_so_far")]

    operations = admission_files()
