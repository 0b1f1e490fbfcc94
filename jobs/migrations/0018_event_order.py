from django.db import migrations

from jobs.store.indexes import RemoveIndexConcurrently


class Migration(migrations.Migration):

    # By itself, so that it can wait until no server of the release before is left: those read the
    # record in this order.
    atomic = False

    dependencies = [
        ('ojs_jobs', '0017_event_writers'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='event',
            options={'ordering': ('id',), 'verbose_name': 'event', 'verbose_name_plural': 'events'},
        ),
        RemoveIndexConcurrently(
            model_name='event',
            name='ojs_event_cursor',
        ),
    ]
