from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_functions")]

    operations = [
        migrations.AddField(
            model_name="adapterversion",
            name="tries",
            field=models.PositiveSmallIntegerField(
                default=0, help_text="how often its check was begun or queued again"
            ),
        ),
    ]
