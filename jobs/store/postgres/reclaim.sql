-- Reclaims active jobs whose visibility timeout has passed (OJS worker protocol §5.5) and, in another
-- variant, those that certain workers hold (§10.2). A job whose execution timeout had passed before its
-- visibility timeout is not among the former: `Job.objects.overdue()`.
--
-- A worker's death may orphan thousands of jobs, and each of them writes four rows: one statement
-- takes a batch. Locked jobs are skipped: they are being settled or extended right now. The rule for
-- the dead letter repeats `keeps_dead_letter()`, and `details` repeats `timeout_details()`.

\set workers '{worker-1}'
\set project ''
\set code 'visibility_timeout'
\set message 'The visibility timeout passed without ACK, FAIL or heartbeat.'
\set stalled true
\set details '{}'
\set records_events true
\set limit 1000

WITH lost AS MATERIALIZED (
    SELECT id, type, queue, attempt, max_attempts, retry, reserved_by, reserved_for,
           reserved_until, followed
      FROM ojs_jobs_job
     WHERE state = 'active'
       AND reserved_for IS NOT NULL
       AND reserved_until <= statement_timestamp()
       AND (timeout IS NULL
            OR started_at + timeout + coalesce(grace_period, '0') > reserved_until)
  ORDER BY id
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
), judged AS MATERIALIZED (
    SELECT *, attempt < max_attempts AS again,
           coalesce(retry->>'on_exhaustion',
                    retry->>'onExhaustion') IS DISTINCT FROM 'discard' AS keeps_dead_letter,
           CASE WHEN :'stalled'::boolean THEN jsonb_build_object(
                'timeout_kind', 'stalled',
                'limit_seconds', trim_scale(round(
                    coalesce(extract(epoch FROM reserved_for), 0), 3)),
                'elapsed_seconds', trim_scale(round(extract(epoch FROM statement_timestamp()
                    - reserved_until + coalesce(reserved_for, '0')), 3)))
           ELSE nullif(:'details'::jsonb -> reserved_by, 'null') END AS details
      FROM lost
), returned AS (
    UPDATE ojs_jobs_job AS job
       SET state = 'available', attempt = job.attempt + 1, attempt_counted = true,
           enqueued_at = statement_timestamp(), started_at = NULL,
           reserved_by = '', reserved_until = NULL, reserved_for = NULL
      FROM judged
     WHERE job.id = judged.id AND judged.again AND job.state = 'active'
 RETURNING job.id, job.attributes ? 'enqueue_ttl' AS had_to_start, job.followed
), discarded AS (
    UPDATE ojs_jobs_job AS job
       SET state = 'discarded', finished_at = statement_timestamp(),
           dead_letter = judged.keeps_dead_letter,
           reserved_by = '', reserved_until = NULL, reserved_for = NULL
      FROM judged
     WHERE job.id = judged.id AND NOT judged.again AND job.state = 'active'
), errors AS (
    INSERT INTO ojs_jobs_joberror
           (job_id, attempt, type, code, message, worker_id, details, occurred_at)
    SELECT id, attempt, :'code', :'code', :'message', reserved_by, details, statement_timestamp()
      FROM judged
), woken AS (
    SELECT count(pg_notify(concat('ojs_jobs', nullif('ojs_jobs_job'::regclass::oid,
               to_regclass('public.ojs_jobs_job')::oid)), queue))
      FROM (SELECT DISTINCT queue FROM judged WHERE again) AS queues
     WHERE EXISTS (SELECT 1 FROM ojs_jobs_listener)
), recorded AS (
    INSERT INTO ojs_jobs_event
           (type, subject, queue, job_type, worker_id, attempt, time, data)
    SELECT event.type, judged.id::text, queue, judged.type, reserved_by, attempt,
           statement_timestamp(), event.data
      FROM judged
CROSS JOIN LATERAL (
           SELECT jsonb_build_object('code', :'code'::text, 'message', :'message'::text) AS object
      ) AS error
CROSS JOIN LATERAL (VALUES
           (CASE WHEN :'stalled'::boolean THEN 'job.stalled' END, judged.details),
           ('job.failed', jsonb_build_object(
                'error', error.object || jsonb_build_object('retryable', again),
                'state', CASE WHEN again THEN 'available' ELSE 'discarded' END)),
           (CASE WHEN again THEN 'job.retrying' END, jsonb_build_object(
                'max_attempts', max_attempts, 'next_retry_at', statement_timestamp(),
                'error', error.object, 'state', 'available')),
           (CASE WHEN NOT again THEN 'job.retry_exhausted' END, jsonb_build_object(
                'total_attempts', attempt, 'last_error', error.object)),
           (CASE WHEN NOT again THEN 'job.discarded' END, jsonb_build_object(
                'total_attempts', attempt, 'last_error', error.object)),
           (CASE WHEN NOT again AND keeps_dead_letter THEN 'job.dead_lettered' END,
            jsonb_build_object('total_attempts', attempt, 'last_error', error.object))
      ) AS event (type, data)
     WHERE event.type IS NOT NULL
       AND :'records_events'::boolean
)
SELECT (SELECT count(*) FROM lost),
       (SELECT array_agg(id) FROM judged WHERE NOT again),
       (SELECT array_agg(id) FROM returned),
       (SELECT array_agg(id) FROM judged WHERE followed AND NOT again),
       (SELECT array_agg(id) FROM returned WHERE had_to_start),
       (SELECT array_agg(id) FROM returned WHERE followed)
  FROM woken;
