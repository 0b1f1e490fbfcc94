from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('ojs_jobs', '0024_schema_registry'),
    ]

    operations = [
        migrations.AddField(
            model_name='rollup',
            name='oldest_wait',
            field=models.DurationField(null=True),
        ),
    ]
