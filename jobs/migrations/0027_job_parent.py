import django.db.models.fields.json
from django.db import migrations, models

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
            index=models.Index(django.db.models.fields.json.KeyTextTransform('parent_id', 'attributes'), condition=models.Q(('attributes__has_key', 'parent_id')), name='ojs_job_parent'),
        ),
    ]
