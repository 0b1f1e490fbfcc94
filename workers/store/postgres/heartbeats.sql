-- Writes several heartbeats that bring nothing new.
--
-- Writes only what is certain: rows that are not locked, of workers that report the same state as
-- before and hold all the jobs they name, and are the same processes. SKIP LOCKED never waits, so the order of the locks does
-- not matter. The conditions are evaluated before the UPDATEs: those may have to re-read a row that
-- changed meanwhile, and would count again.

\set heartbeats '[{"worker_id": "worker-1", "state": "running", "active_job_ids": []}]'
\set grace '25 seconds'
-- Tell the planner how many heartbeats and jobs there are.
\set most 32
\set limit 100

WITH free AS MATERIALIZED (
    SELECT heartbeat.*, worker.state AS state_now, worker.directive
      FROM jsonb_to_recordset(:'heartbeats'::jsonb) AS heartbeat (
           worker_id text, project text, state text, sequence bigint, requested interval,
           active_job_ids jsonb, hostname text, pid bigint, queues jsonb, concurrency integer,
           labels jsonb, started_at timestamptz, version text, job_versions jsonb)
CROSS JOIN LATERAL (
        SELECT state, directive
          FROM ojs_workers_worker
         WHERE worker_id = heartbeat.worker_id
           AND project = coalesce(heartbeat.project, project)
           AND state = coalesce(heartbeat.state, state)
           AND state <> 'terminated'
           AND directive <> 'running'
           AND (heartbeat.sequence IS NULL OR sequence IS NULL OR sequence < heartbeat.sequence)
           AND (nullif(hostname, '') = nullif(heartbeat.hostname, '')) IS NOT FALSE
           AND (pid = heartbeat.pid) IS NOT FALSE
           AND (started_at - heartbeat.started_at BETWEEN '-1 second' AND '1 second') IS NOT FALSE
           FOR UPDATE SKIP LOCKED
      ) AS worker
     LIMIT :most
), held AS MATERIALIZED (
    SELECT job.id, free.worker_id
      FROM free
CROSS JOIN LATERAL jsonb_array_elements_text(free.active_job_ids) AS named (id)
CROSS JOIN LATERAL (
        SELECT id
          FROM ojs_jobs_job
         WHERE id = named.id::uuid
           AND state = 'active'
           AND reserved_by = free.worker_id
           FOR UPDATE SKIP LOCKED
      ) AS job
     LIMIT :limit
), whole AS MATERIALIZED (
    SELECT *, 'terminate' IN (state_now, directive) AS terminating
      FROM free
     WHERE coalesce(jsonb_array_length(active_job_ids), 0)
           = (SELECT count(*) FROM held WHERE held.worker_id = free.worker_id)
     LIMIT :most
), beat AS (
    UPDATE ojs_workers_worker AS worker
       SET last_heartbeat_at = statement_timestamp(),
           active_job_ids = coalesce(whole.active_job_ids, worker.active_job_ids),
           sequence = coalesce(whole.sequence, worker.sequence),
           hostname = coalesce(whole.hostname, worker.hostname),
           pid = coalesce(whole.pid, worker.pid),
           queues = coalesce(whole.queues, worker.queues),
           concurrency = coalesce(whole.concurrency, worker.concurrency),
           labels = coalesce(whole.labels, worker.labels),
           started_at = coalesce(whole.started_at, worker.started_at),
           version = coalesce(whole.version, worker.version),
           job_versions = coalesce(whole.job_versions, worker.job_versions)
      FROM whole
     WHERE worker.worker_id = whole.worker_id
), extended AS (
    UPDATE ojs_jobs_job AS job
       SET reserved_until = statement_timestamp() + greatest(
               CASE WHEN whole.requested IS NULL THEN job.reserved_for
                    ELSE greatest(job.visibility_timeout, whole.requested) END,
               CASE WHEN whole.terminating THEN :'grace'::interval END)
      FROM held
      JOIN whole USING (worker_id)
     WHERE job.id = held.id
)
SELECT worker_id, state_now, directive FROM whole;
