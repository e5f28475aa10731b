from django.db import migrations

from tenants.sql import admission_files, run_sql_file


class Migration(migrations.Migration):
    """The first request of a key with limits of its own reads that key's entries, not the whole account's; a budget far
    below what is spent refuses, where it overflowed.
    """

    dependencies = [("tenants", "0024_clocks_set_back")]

    operations = [run_sql_file("price.sql", may_stay=True), *admission_files()]
