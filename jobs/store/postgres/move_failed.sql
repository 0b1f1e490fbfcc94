-- Moves active jobs whose attempt failed, or whose worker gave them back (FAIL, OJS core §7.4). Their
-- rows are locked by the transaction, which has decided what follows for each.

\set moves '[{"job_id": "019539a4-0000-7000-8000-000000000001", "state": "retryable", "at": "2026-01-01T00:00:00Z", "retry_delay": 1.5, "released": false, "dead_letter": false, "unfenced": false}]'
-- Cuts nothing off: see complete.sql.
\set limit 10

WITH move AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset(:'moves'::jsonb)
        AS move (job_id uuid, state text, at timestamptz, retry_delay double precision,
                 released boolean, dead_letter boolean, unfenced boolean)
     LIMIT :limit
)
UPDATE ojs_jobs_job AS job
   SET state = move.state,
       attempt_counted = move.released,
       enqueued_at = CASE move.state WHEN 'available' THEN move.at ELSE job.enqueued_at END,
       scheduled_at = CASE move.state WHEN 'retryable' THEN move.at ELSE job.scheduled_at END,
       retry_delay = CASE move.state WHEN 'retryable' THEN make_interval(secs => move.retry_delay)
                                     ELSE job.retry_delay END,
       finished_at = CASE move.state WHEN 'discarded' THEN move.at END,
       finished_by = CASE move.state WHEN 'discarded' THEN job.reserved_by
                                     ELSE job.finished_by END,
       dead_letter = CASE move.state WHEN 'discarded' THEN move.dead_letter
                                     ELSE job.dead_letter END,
       unfenced = CASE move.state WHEN 'discarded' THEN move.unfenced ELSE job.unfenced END,
       reserved_by = '',
       reserved_until = NULL,
       reserved_for = NULL
  FROM move
 WHERE job.id = move.job_id
   AND job.state = 'active'
RETURNING job.id;
