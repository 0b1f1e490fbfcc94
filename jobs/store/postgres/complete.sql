-- Records that jobs finished (ACK, OJS core §7.3).
--
-- Rows are locked in id order: two batches that share jobs cannot deadlock. A job that others wait
-- for is left for a second run with `followed`, in one transaction with the jobs that it frees; all
-- other jobs need only this statement.

\set completions '[{"id": "019539a4-0000-7000-8000-000000000001", "worker_id": "worker-1", "attempt": 1, "result": null}]'
\set followed false
\set records_events true
-- Cuts nothing off: it tells the planner, which assumes a hundred rows for any recordset, how many
-- there are. Otherwise it reads all jobs to settle one.
\set limit 10

WITH done AS MATERIALIZED (
    SELECT *
      FROM ROWS FROM (
           jsonb_to_recordset(:'completions'::jsonb)
           AS (id uuid, worker_id text, attempt integer, result jsonb)) WITH ORDINALITY
        AS done (id, worker_id, attempt, result, place)
  ORDER BY id
     LIMIT :limit
), held AS MATERIALIZED (
    SELECT job.id, done.place, done.result, done.worker_id IS NULL AS unfenced,
           job.followed AND NOT :'followed'::boolean AS is_left
      FROM done
CROSS JOIN LATERAL (
        SELECT id, followed
          FROM ojs_jobs_job
         WHERE id = done.id
           AND state = 'active'
           AND (done.worker_id IS NULL OR reserved_by = done.worker_id)
           AND (done.attempt IS NULL OR attempt = done.attempt)
           FOR UPDATE
      ) AS job
), completed AS (
    UPDATE ojs_jobs_job AS job
       SET state = 'completed',
           result = held.result,
           finished_at = statement_timestamp(),
           finished_by = job.reserved_by,
           unfenced = held.unfenced,
           reserved_by = '',
           reserved_until = NULL,
           reserved_for = NULL
      FROM held
     WHERE job.id = held.id
       AND NOT held.is_left
 RETURNING held.place, job.id, job.type, job.queue, job.attempt, job.max_attempts,
           job.finished_at, job.finished_by, job.started_at
), recorded AS (
    INSERT INTO ojs_jobs_event
           (type, subject, queue, job_type, worker_id, attempt, time, data)
    SELECT 'job.completed', id::text, queue, type, finished_by, attempt, finished_at,
           jsonb_build_object('duration_ms',
               floor(extract(epoch FROM finished_at - started_at) * 1000)::bigint)
      FROM completed
     WHERE :'records_events'::boolean
)
SELECT place, attempt, max_attempts, finished_at FROM completed
 UNION ALL
SELECT place, NULL, NULL, NULL FROM held WHERE is_left;
