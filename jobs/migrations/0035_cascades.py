from django.db import migrations

from jobs.store import cascades


def forwards(apps, editor):
    cascades.set_cascade(apps.get_model('ojs_jobs', 'Job'), editor.connection, cascades=True)


def backwards(apps, editor):
    cascades.set_cascade(apps.get_model('ojs_jobs', 'Job'), editor.connection, cascades=False)


class Migration(migrations.Migration):
    # The tables may be large and are always in use: each step is a short transaction of its own.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0034_vacuum_pace'),
    ]

    operations = [
        migrations.RunPython(forwards, backwards),
    ]
