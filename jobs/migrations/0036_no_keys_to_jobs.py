import django.db.models.deletion
from django.db import migrations, models

from jobs.store import references


def forwards(apps, editor):
    references.drop_keys(apps.get_model('ojs_jobs', 'Job'), editor.connection)


class Migration(migrations.Migration):
    # The tables are always in use: each step is a short transaction of its own.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0035_cascades'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            # SQLite would copy the tables; there, a key costs little.
            # Backwards they stay as they are: the release before does not rely on keys.
            database_operations=[migrations.RunPython(forwards, migrations.RunPython.noop)],
            state_operations=[
                migrations.AlterField(
                    model_name='dependency',
                    name='predecessor',
                    field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='dependents', to='ojs_jobs.job'),
                ),
                migrations.AlterField(
                    model_name='dependency',
                    name='waiter',
                    field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='dependencies', to='ojs_jobs.job'),
                ),
                migrations.AlterField(
                    model_name='joberror',
                    name='job',
                    field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='errors', to='ojs_jobs.job'),
                ),
                migrations.AlterField(
                    model_name='joblog',
                    name='job',
                    field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='logs', to='ojs_jobs.job'),
                ),
                migrations.AlterField(
                    model_name='progressreport',
                    name='job',
                    field=models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='progress_report', serialize=False, to='ojs_jobs.job'),
                ),
            ],
        ),
    ]
