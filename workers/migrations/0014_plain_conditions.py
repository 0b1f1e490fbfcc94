from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('ojs_workers', '0013_webhook_jobless'),
    ]

    operations = [
        migrations.AlterField(
            model_name='worker',
            name='concurrency',
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name='worker',
            name='incarnation',
            field=models.IntegerField(default=1),
        ),
    ]
