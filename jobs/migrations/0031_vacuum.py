from django.db import migrations

# Autovacuum by what is dead, not by a share of the table: with ten million finished jobs the default
# waits for two million dead rows, and FETCH reads past the dead entries of its index until then. The
# thresholds are far above a quiet server's minute, since each vacuum reads every index once. Events
# are hardly ever dead, but vacuumed pages are what a later vacuum, and the one that freezes, may skip.
SETTINGS = {
    'ojs_jobs_job': {
        'autovacuum_vacuum_scale_factor': '0',
        'autovacuum_vacuum_threshold': '100000',
    },
    'ojs_jobs_event': {
        'autovacuum_vacuum_scale_factor': '0',
        'autovacuum_vacuum_threshold': '200000',
        'autovacuum_vacuum_insert_scale_factor': '0',
        'autovacuum_vacuum_insert_threshold': '1000000',
    },
}
# A partitioned table has no storage parameters; its partitions have.
TABLES = """
    SELECT class.oid::regclass::text,
           ARRAY(SELECT option_name FROM pg_options_to_table(class.reloptions)),
           ARRAY(SELECT option_value FROM pg_options_to_table(class.reloptions))
      FROM pg_class AS class
     WHERE class.relkind = 'r'
       AND class.oid IN (SELECT %s::regclass UNION SELECT relid FROM pg_partition_tree(%s))
"""


def _tables(editor, table):
    """Yield each table that holds rows of `table`, as SQL, and its own storage parameters."""
    with editor.connection.cursor() as cursor:
        cursor.execute(TABLES, [table, table])
        for name, options, values in cursor.fetchall():
            yield name, dict(zip(options, values, strict=True))


def add(editor, wanted):
    if editor.connection.vendor != 'postgresql':
        return
    for table, settings in wanted.items():
        for name, present in _tables(editor, table):
            # What an operator has set stays.
            missing = ', '.join(f'{key} = {value}' for key, value in settings.items() if key not in present)
            if missing:
                # SHARE UPDATE EXCLUSIVE: nothing that reads or writes rows waits for it.
                editor.execute(f'ALTER TABLE {name} SET ({missing})', params=None)


def take_back(editor, wanted):
    if editor.connection.vendor != 'postgresql':
        return
    for table, settings in wanted.items():
        for name, present in _tables(editor, table):
            ours = ', '.join(key for key, value in settings.items() if present.get(key) == value)
            if ours:
                editor.execute(f'ALTER TABLE {name} RESET ({ours})', params=None)


def forwards(apps, editor):
    add(editor, SETTINGS)


def backwards(apps, editor):
    take_back(editor, SETTINGS)


class Migration(migrations.Migration):

    dependencies = [
        ('ojs_jobs', '0030_pool_rules'),
    ]

    operations = [
        migrations.RunPython(forwards, backwards),
    ]
