from django.db import migrations, models

from tenants.sql import admission_files, run_sql_file


class Migration(migrations.Migration):
    """A clock that was wrong for a while leaves no bucket empty, no place taken and no day forgotten."""

    dependencies = [("tenants", "0023_days_go_forward")]

    operations = [
        # Undone, the functions stay, and with them the column that they write.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddField(
                    "account",
                    "latest_day",
                    models.DateField(
                        help_text="the latest that it was ever in; later than day: a wrong clock", null=True
                    ),
                ),
            ]
        ),
        *admission_files(),
        run_sql_file("settle.sql", may_stay=True),
    ]
