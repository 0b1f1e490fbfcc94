from django.db import migrations, models

from jobs.store.indexes import AddIndexConcurrently, RemoveIndexConcurrently


class Migration(migrations.Migration):

    # The table of jobs may be large and is always in use: no index may stop its writers.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0006_limits'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(models.F('queue'), models.F('rate_key'), models.OrderBy(models.F('priority'), descending=True), models.F('enqueued_at'), models.F('id'), condition=models.Q(('state', 'available')), name='ojs_job_fetchable'),
        ),
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(models.F('rate_key'), condition=models.Q(('state', 'active'), ('rate_key__gt', '')), name='ojs_job_rate_active'),
        ),
        # Last, so that servers of the release before go on fetching quickly until they are replaced.
        RemoveIndexConcurrently(
            model_name='job',
            name='ojs_job_available',
        ),
    ]
