from django.db import migrations, models

from jobs.store.indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    # Refusals are written at any time: no index may stop their writers.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0025_oldest_wait'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='operatoraction',
            index=models.Index(fields=['done_at'], name='ojs_action_done'),
        ),
    ]
