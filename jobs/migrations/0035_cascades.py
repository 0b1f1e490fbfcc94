from django.db import migrations


class Migration(migrations.Migration):
    # It made the keys to jobs cascade, which 0036 drops.
    dependencies = [
        ('ojs_jobs', '0034_vacuum_pace'),
    ]

    operations = []
