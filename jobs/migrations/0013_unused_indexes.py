from django.db import migrations

from jobs.store.indexes import RemoveIndexConcurrently


class Migration(migrations.Migration):

    # By itself, so that it can wait until no server of the release before is left: those look here
    # for what a worker holds.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0012_heartbeat_index'),
    ]

    operations = [
        RemoveIndexConcurrently(
            model_name='job',
            name='ojs_job_reserved',
        ),
    ]
