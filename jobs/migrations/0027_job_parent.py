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
        AddIndexConcurrently(
            model_name='job',
            index=models.Index(jobs.store.expressions.MemberText('attributes', 'parent_id'), condition=models.Q(django.db.models.lookups.IsNull(jobs.store.expressions.MemberText('attributes', 'parent_id'), False)), name='ojs_job_parent'),
        ),
    ]
