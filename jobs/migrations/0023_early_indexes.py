from django.db import migrations, models

from jobs.store.indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    # Earlier releases made these in 0002 and 0003, under a lock that stops writes. Indexes that
    # exist are kept; an upgrade from a release before those makes them beside the running servers.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0022_type_rollup'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(models.F('queue'), condition=models.Q(('state', 'pending')), name='ojs_job_pending'),
        ),
        AddIndexConcurrently(
            model_name='joberror',
            index=models.Index(models.F('occurred_at'), name='ojs_joberror_time'),
        ),
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(models.F('project'), models.F('queue'), models.OrderBy(models.F('priority'), descending=True), models.F('enqueued_at'), models.F('id'), condition=models.Q(('state', 'available'), models.Q(('project', ''), _negated=True)), name='ojs_job_project'),
        ),
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(models.F('project'), models.F('queue'), models.F('scheduled_at'), condition=models.Q(('state__in', ('scheduled', 'retryable')), models.Q(('project', ''), _negated=True)), name='ojs_job_project_due'),
        ),
    ]
