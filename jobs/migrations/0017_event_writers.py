from django.db import migrations

# Each transaction that writes events says so by a shared advisory lock on (table, last id drawn).
# It is taken before the first id is drawn, once for a transaction, whichever statement writes, and
# whatever version of the server: a reader finds in pg_locks up to which id the record may still
# grow (`jobs/record/events.py`). Simple expressions only: PL/pgSQL evaluates those without a query.
# SECURITY DEFINER, since who may insert need not have a right to look at the sequence.
WRITER = """
CREATE FUNCTION ojs_jobs_event_writer() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $function$
DECLARE
    about int4 := TG_RELID::pg_catalog.int8::bit(32)::pg_catalog.int4;
    drawn int4;
BEGIN
    IF coalesce(pg_catalog.current_setting('ojs.event_writer', true), '') = '' THEN
        drawn := coalesce(
            pg_catalog.pg_sequence_last_value({sequence}::pg_catalog.regclass), 0
        )::bit(32)::pg_catalog.int4;
        IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(about, drawn) THEN
            PERFORM pg_catalog.pg_advisory_xact_lock_shared(about, drawn);
        END IF;
        IF pg_catalog.set_config('ojs.event_writer', 'yes', true) IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN NULL;
END;
$function$
"""
TRIGGER = """
CREATE TRIGGER ojs_jobs_event_writer BEFORE INSERT ON ojs_jobs_event
    FOR EACH STATEMENT EXECUTE FUNCTION ojs_jobs_event_writer()
"""


def forwards(apps, editor):
    if editor.connection.vendor != 'postgresql':
        return
    with editor.connection.cursor() as cursor:
        cursor.execute("SELECT quote_literal(pg_get_serial_sequence('ojs_jobs_event', 'id'))")
        (sequence,) = cursor.fetchone()
    editor.execute(WRITER.format(sequence=sequence), params=None)
    # Waits for those that are writing events without it.
    editor.execute(TRIGGER, params=None)


def backwards(apps, editor):
    if editor.connection.vendor == 'postgresql':
        editor.execute('DROP TRIGGER ojs_jobs_event_writer ON ojs_jobs_event')
        editor.execute('DROP FUNCTION ojs_jobs_event_writer()')


class Migration(migrations.Migration):

    dependencies = [
        ('ojs_jobs', '0016_key_lifecycle'),
    ]

    operations = [
        migrations.RunPython(forwards, backwards),
    ]
