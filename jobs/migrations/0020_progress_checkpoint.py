from django.db import migrations


class Migration(migrations.Migration):

    # Django forgets the column; the database keeps it, empty. Servers of the release before name
    # it in every SELECT and INSERT, and they work on beside the new ones. The release after this
    # one drops it (docs/releasing.md).

    dependencies = [
        ('ojs_jobs', '0019_protocol_names'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField(model_name='progressreport', name='checkpoint'),
            ],
        ),
    ]
