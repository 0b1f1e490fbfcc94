from django.db import migrations, models

from jobs.store.locks import alter

# As in the migration of this name of the jobs.
GONE = ['ojs_workers_worker_concurrency_check', 'ojs_workers_worker_incarnation_check']


def forwards(apps, editor):
    if editor.connection.vendor == 'postgresql':
        table = apps.get_model('ojs_workers', 'Worker')._meta.db_table
        alter(editor.connection, *(f'ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {old}' for old in GONE))


class Migration(migrations.Migration):
    # Each heartbeat writes to the table.
    atomic = False

    dependencies = [
        ('ojs_workers', '0013_webhook_jobless'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(forwards, migrations.RunPython.noop)],
            state_operations=[
                migrations.AlterField(
                    model_name='worker',
                    name='concurrency',
                    field=models.IntegerField(blank=True, null=True),
                ),
                migrations.AlterField(
                    model_name='worker',
                    name='incarnation',
                    field=models.IntegerField(default=1),
                ),
            ],
        ),
    ]
