-- Makes due scheduled and retryable jobs available (OJS core §6.3); none during maintenance
-- (OJS admin API §12.1).

-- A fetch takes due jobs itself and skips locked rows: at the moment a job falls due, when a fetch
-- is most likely, the timer must not lock it, or that fetch would come back empty.
\set head_start '250 milliseconds'
\set records_events true
\set limit 1000

WITH due AS MATERIALIZED (
    SELECT id
      FROM ojs_jobs_job
     WHERE state IN ('scheduled', 'retryable')
       AND scheduled_at <= statement_timestamp() - :'head_start'::interval
       AND NOT EXISTS (SELECT 1
                         FROM ojs_jobs_maintenance
                        WHERE coalesce(until > statement_timestamp(), true))
  ORDER BY scheduled_at
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
), promoted AS (
    UPDATE ojs_jobs_job AS job
       SET state = 'available', enqueued_at = statement_timestamp()
      FROM due
     WHERE job.id = due.id
 RETURNING job.id, job.type, job.queue, job.attempt
), woken AS (
    SELECT count(pg_notify(concat('ojs_jobs', nullif('ojs_jobs_job'::regclass::oid,
               to_regclass('public.ojs_jobs_job')::oid)), queue))
      FROM (SELECT DISTINCT queue FROM promoted) AS queues
     WHERE EXISTS (SELECT 1 FROM ojs_jobs_listener)
), recorded AS (
    INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time)
    SELECT 'job.enqueued', id::text, queue, type, '', attempt, statement_timestamp()
      FROM promoted
     WHERE :'records_events'::boolean
)
SELECT (SELECT count(*) FROM promoted) FROM woken;
