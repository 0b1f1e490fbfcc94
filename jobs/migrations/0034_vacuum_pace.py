from importlib import import_module

from django.db import migrations

vacuum = import_module('jobs.migrations.0031_vacuum')

# By default a vacuum sleeps most of the time. After a long transaction, that made it take a minute for
# each of these tables, in which every fetch went past the rows that it had not come to. An operator's
# own setting stays, as in 0031.
SETTINGS = {
    'ojs_jobs_job': {'autovacuum_vacuum_cost_limit': '1000'},
    'ojs_jobs_event': {'autovacuum_vacuum_cost_limit': '1000'},
}


def forwards(apps, editor):
    vacuum.add(editor, SETTINGS)


def backwards(apps, editor):
    vacuum.take_back(editor, SETTINGS)


class Migration(migrations.Migration):

    dependencies = [
        ('ojs_jobs', '0033_dead_letter_choices'),
    ]

    operations = [
        migrations.RunPython(forwards, backwards),
    ]
