from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gateway", "0001_initial")]

    operations = [
        migrations.AddField("wsticket", "session", models.CharField(max_length=40, null=True)),
        migrations.AddField("wsticket", "password", models.BinaryField(max_length=32, null=True)),
    ]
