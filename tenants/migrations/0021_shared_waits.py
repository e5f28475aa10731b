from django.db import migrations

from tenants.sql import admission_files


class Migration(migrations.Migration):
    """Admission without a wait for the disk of its own; settlement's part of it comes with 0022, whose column it reads.

    The files are today's: what they read of an account is added here, so that a gateway from before admits throughout.
    The model learns of it with 0024.
    """

    dependencies = [("tenants", "0020_key_issuers")]

    operations = admission_files()
