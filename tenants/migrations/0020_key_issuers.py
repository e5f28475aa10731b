from django.db import migrations, models

# Who was shown the text of the keys from before, the audit log knows: operators, keys of theirs, and so on.
_FROM_THE_AUDIT_LOG = """
WITH RECURSIVE theirs AS (
    SELECT subject FROM tenants_auditentry WHERE action = 'key.issued' AND actor_kind = 'operator'
    UNION
    SELECT entry.subject FROM tenants_auditentry entry
      JOIN theirs ON entry.actor_name = theirs.subject
     WHERE entry.action = 'key.issued' AND entry.actor_kind = 'key'
)
UPDATE tenants_apikey SET issued_by = 'operator' FROM theirs WHERE public_id = theirs.subject
"""


class Migration(migrations.Migration):
    """The database has the default as well: gateways from before go on issuing keys."""

    dependencies = [("tenants", "0019_playground_keys")]

    operations = [
        migrations.AddField(
            "apikey",
            "issued_by",
            models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="the kind of actor that was shown its text; operator also where a key of theirs issued it",
                max_length=16,
            ),
        ),
        migrations.RunSQL(_FROM_THE_AUDIT_LOG, migrations.RunSQL.noop),
    ]
