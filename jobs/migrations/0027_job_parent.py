import django.db.models.lookups
from django.db import migrations, models

import jobs.store.expressions
from jobs.store.indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    # Jobs are written at any time: no index may stop their writers.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0026_audit_time'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='job',
            options={'permissions': [('cancel_job', 'Can cancel jobs'), ('retry_job', 'Can retry discarded jobs'), ('discard_job', 'Can delete jobs from the dead letter'), ('erase_job', 'Can erase finished jobs with every trace'), ('run_job', 'Can run waiting jobs now'), ('enqueue_job', 'Can enqueue jobs by hand'), ('view_job_args', 'Can see arguments that are redacted for others')], 'verbose_name': 'job', 'verbose_name_plural': 'jobs'},
        ),
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(jobs.store.expressions.MemberText('attributes', 'parent_id'), 'id', condition=models.Q(django.db.models.lookups.IsNull(jobs.store.expressions.MemberText('attributes', 'parent_id'), False)), name='ojs_job_parent'),
        ),
    ]
