-- Stores one job without unusual members, as most calls of `jobs.enqueue()` do. Reading a document
-- and passing on members that are null take a quarter of the time of insert_each.sql; see there.

\set id '019539a4-0000-7000-8000-00000000000c'
\set type demo
\set queue default
\set args '[1]'
\set meta '{}'
\set priority 0
\set max_attempts 3
\set tags '[]'
\set attributes '{}'
\set project ''
\set asks_queues true
\set registry ''
\set records_events true

WITH inserted AS (
    INSERT INTO ojs_jobs_job
           (id, type, queue, args, meta,
            priority, state, attempt, attempt_counted, max_attempts,
            reserved_by, finished_by, unfenced, created_at, enqueued_at,
            tags, attributes, dead_letter, followed, rate_key, project)
    SELECT :'id'::uuid, :'type'::text, :'queue'::text, :'args'::jsonb, :'meta'::jsonb,
           :'priority'::smallint, 'available', 0, false, :'max_attempts'::integer,
           '', '', false, statement_timestamp(), statement_timestamp(),
           :'tags'::jsonb, :'attributes'::jsonb, false, false, '', :'project'::text
     WHERE (NOT :'asks_queues'::boolean
            OR NOT EXISTS (SELECT 1
                             FROM ojs_jobs_maintenance
                            WHERE refuses_jobs
                              AND coalesce(until > statement_timestamp(), true))
           AND NOT EXISTS (SELECT 1
                             FROM ojs_jobs_queue
                            WHERE is_guarded
                              AND name = :'queue'::text))
       AND :'registry'::text
           IN ('*', coalesce((SELECT token FROM ojs_jobs_schemaregistry), ''))
 RETURNING id
), woken AS (
    SELECT count(pg_notify(concat('ojs_jobs', nullif('ojs_jobs_job'::regclass::oid,
               to_regclass('public.ojs_jobs_job')::oid)), :'queue'::text))
     WHERE EXISTS (SELECT 1 FROM inserted)
       AND EXISTS (SELECT 1 FROM ojs_jobs_listener)
), recorded AS (
    INSERT INTO ojs_jobs_event
           (txid, type, subject, queue, job_type, worker_id, attempt,
            time, data)
    SELECT pg_current_xact_id()::text::bigint, 'job.enqueued', id::text, :'queue'::text,
           :'type'::text, '', 0, statement_timestamp(),
           jsonb_build_object('priority', :'priority'::smallint)
      FROM inserted
     WHERE :'records_events'::boolean
)
SELECT statement_timestamp(), (SELECT count(*) FROM inserted) FROM woken;
