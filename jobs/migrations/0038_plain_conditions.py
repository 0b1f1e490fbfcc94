from django.db import migrations, models
from django.db.models.lookups import Exact, In, IsNull

from jobs.store.locks import alter

# PostgreSQL parses the conditions of a table anew for each statement that writes to it. These say
# what they said before in half as many words; those that a count is not negative are gone.
SHORTER = [
    models.CheckConstraint(
        condition=Exact(IsNull(models.F('reserved_until'), False), Exact(models.F('state'), 'active')),
        name='ojs_job_active_is_reserved',
    ),
    models.CheckConstraint(
        condition=Exact(
            IsNull(models.F('finished_at'), False),
            In(models.F('state'), ['cancelled', 'completed', 'discarded']),
        ),
        name='ojs_job_terminal_is_finished',
    ),
]
GONE = {
    'Job': ['ojs_jobs_job_attempt_check', 'ojs_jobs_job_max_attempts_check', 'ojs_jobs_job_workflow_index_check'],
    'Event': ['ojs_jobs_event_attempt_check'],
}


def forwards(apps, editor):
    database = editor.connection
    if database.vendor != 'postgresql':
        return
    for name, gone in GONE.items():
        model = apps.get_model('ojs_jobs', name)
        shorter = SHORTER if name == 'Job' else []
        changes = f'ALTER TABLE {model._meta.db_table} '
        alter(
            database,
            *(f'{changes} DROP CONSTRAINT IF EXISTS {old}' for old in [*gone, *(new.name for new in shorter)]),
            *(f'{new.create_sql(model, editor)} NOT VALID' for new in shorter),
        )
        for new in shorter:
            # Reads the whole table, and holds nobody up.
            editor.execute(f'{changes} VALIDATE CONSTRAINT {new.name}')


class Migration(migrations.Migration):
    # The tables are always in use: each step is a short transaction of its own.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0037_pending_release'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            # SQLite would copy the tables. Backwards they stay as they are: they say the same.
            database_operations=[migrations.RunPython(forwards, migrations.RunPython.noop)],
            state_operations=[
                migrations.AlterField(
                    model_name='event',
                    name='attempt',
                    field=models.IntegerField(blank=True, null=True),
                ),
                migrations.AlterField(
                    model_name='job',
                    name='attempt',
                    field=models.IntegerField(default=0),
                ),
                migrations.AlterField(
                    model_name='job',
                    name='max_attempts',
                    field=models.IntegerField(default=3),
                ),
                migrations.AlterField(
                    model_name='job',
                    name='workflow_index',
                    field=models.IntegerField(blank=True, null=True),
                ),
                *(migrations.RemoveConstraint(model_name='job', name=new.name) for new in SHORTER),
                *(migrations.AddConstraint(model_name='job', constraint=new) for new in SHORTER),
            ],
        ),
    ]
