from django.db import migrations, models

from jobs.store.indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    # The table of jobs may be large and is always in use: no index may stop its writers.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0011_queue_policy'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(models.F('reserved_by'), condition=models.Q(('reserved_for__isnull', False)), name='ojs_job_held'),
        ),
    ]
