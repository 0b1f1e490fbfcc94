-- Writes a heartbeat and extends the jobs that it names (OJS worker protocol §4, §5.4).
--
-- §2.3: there is no way back from `terminate`. A resume has been heard when the worker reports
-- `running`; a later `quiet` is then the worker's own. §3.1: a heartbeat of another process under the
-- same id is not written; what one side does not say proves nothing. Jobs are locked in the order of
-- their ids, as in every batch.

\set worker_id 'worker-1'
\set project ''
\set sequence 1
\set state 'running'
\set active_job_ids '[]'
\set hostname 'web-1'
\set pid 4242
\set queues '["default"]'
\set concurrency 10
\set labels '[]'
\set started_at '2026-01-01 00:00:00+00'
\set protocol 'ojs'
\set version '1.0'
\set job_versions '{}'
\set heartbeat_timeout '30 seconds'
\set job_ids '{}'
\set requested '30 seconds'
\set grace '25 seconds'
\set records_events true
\set records_heartbeats false
-- Tells the planner how many jobs there are.
\set limit 10

WITH before AS MATERIALIZED (
    SELECT worker_id, state
      FROM ojs_workers_worker
     WHERE worker_id = :'worker_id'
       AND :'project'::text IN ('', project)
       AND state <> 'terminated'
       AND (:'sequence'::bigint IS NULL OR sequence IS NULL OR sequence < :'sequence'::bigint)
       AND (nullif(hostname, '') = nullif(:'hostname'::text, '')) IS NOT FALSE
       AND (pid = :'pid'::bigint) IS NOT FALSE
       AND (started_at - :'started_at'::timestamptz BETWEEN '-1 second' AND '1 second') IS NOT FALSE
       FOR UPDATE
), beat AS (
    UPDATE ojs_workers_worker AS worker
       SET last_heartbeat_at = statement_timestamp(),
           state = CASE WHEN worker.state = 'terminate' THEN worker.state
                        ELSE coalesce(:'state'::text, worker.state) END,
           directive = CASE WHEN :'state'::text = 'running' AND directive = 'running'
                            THEN '' ELSE directive END,
           active_job_ids = coalesce(:'active_job_ids'::jsonb, active_job_ids),
           sequence = coalesce(:'sequence'::bigint, sequence),
           hostname = coalesce(:'hostname'::text, hostname),
           pid = coalesce(:'pid'::bigint, pid),
           queues = coalesce(:'queues'::jsonb, queues),
           concurrency = coalesce(:'concurrency'::integer, concurrency),
           labels = coalesce(:'labels'::jsonb, labels),
           started_at = coalesce(:'started_at'::timestamptz, started_at),
           protocol = coalesce(:'protocol'::text, protocol),
           version = coalesce(:'version'::text, version),
           job_versions = coalesce(:'job_versions'::jsonb, job_versions),
           heartbeat_timeout = coalesce(:'heartbeat_timeout'::interval, heartbeat_timeout)
      FROM before
     WHERE worker.worker_id = before.worker_id
 RETURNING worker.worker_id, worker.state, worker.directive, before.state AS state_before,
           worker.queues,
           'terminate' IN (worker.state, worker.directive) AS terminating
), named AS MATERIALIZED (
    SELECT id
      FROM unnest(:'job_ids'::uuid[]) AS id
  ORDER BY id
     LIMIT :limit
), held AS MATERIALIZED (
    SELECT job.id
      FROM beat
CROSS JOIN named
CROSS JOIN LATERAL (
        SELECT id
          FROM ojs_jobs_job
         WHERE id = named.id
           AND state = 'active'
           AND reserved_by IN (:'worker_id'::text, '')
           FOR UPDATE
      ) AS job
     LIMIT :limit
), extended AS (
    -- `greatest` ignores NULL. A terminating worker's jobs stay reserved for at least its grace period.
    UPDATE ojs_jobs_job AS job
       SET reserved_by = beat.worker_id,
           reserved_until = statement_timestamp() + greatest(
               CASE WHEN :'requested'::interval IS NULL THEN job.reserved_for
                    ELSE greatest(job.visibility_timeout, :'requested'::interval) END,
               CASE WHEN beat.terminating THEN :'grace'::interval END)
      FROM held, beat
     WHERE job.id = held.id
 RETURNING job.id, job.type, job.queue, job.attempt, job.reserved_by, job.reserved_until
), recorded AS (
    INSERT INTO ojs_jobs_event
           (type, subject, queue, job_type, worker_id, attempt, time, data)
    SELECT 'worker.quiet', worker_id, '', '', worker_id, NULL::integer, statement_timestamp(),
           jsonb_build_object('active_jobs', cardinality(:'job_ids'::uuid[]))
      FROM beat
     WHERE state = 'quiet' AND state_before <> 'quiet' AND :'records_events'::boolean
 UNION ALL
    SELECT 'worker.heartbeat', worker_id, '', '', worker_id, NULL, statement_timestamp(),
           jsonb_build_object('active_jobs', cardinality(:'job_ids'::uuid[]), 'queues', queues)
      FROM beat
     WHERE :'records_heartbeats'::boolean
 UNION ALL
    SELECT 'job.heartbeat', id::text, queue, type, reserved_by, attempt,
           statement_timestamp(), jsonb_build_object('visible_until', reserved_until)
      FROM extended
     WHERE :'records_heartbeats'::boolean
)
SELECT state, directive, ARRAY(SELECT id FROM extended), state_before FROM beat;
