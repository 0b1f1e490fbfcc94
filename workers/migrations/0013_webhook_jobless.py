from django.db import migrations, models

from jobs.store.indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    # Deliveries are written at any time: no index may stop their writers.
    atomic = False

    dependencies = [
        ('ojs_workers', '0012_webhook_jobs'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='webhookdelivery',
            index=models.Index(models.F('id'), condition=models.Q(('job_id__isnull', True), ('state', 'pending')), name='ojs_webhook_jobless'),
        ),
    ]
