-- Reserves jobs for a worker (OJS worker protocol §6), or reports that another statement must.

\set worker_id 'worker-1'
\set queues '{default}'
\set types '{}'
\set able '[]'
\set versions '{}'
\set project ''
\set visibility_timeout '30 seconds'
\set asks_limits true
\set records_events true
-- Written into the statement: if these were bound as parameters, or the planner had to guess the
-- number of queues, it would be planned anew each time, which costs as much as running it.
\set limit 10
\set queue_count 1
\set errors_shown 10
\set many 5000

-- A `Gate` with further checks of the worker replaces this row. `room` is how many jobs the worker
-- may have, null for any number. For a worker that accepts only some versions (`versions` is not
-- null), or with limited queues, nothing is claimed here, so that neither makes the statement longer
-- for all others: there is always a row to read, which reports it. The same holds for a worker whose
-- labels name a pool, which another statement claims for. The difference of the counter is how many
-- entries of the index were read until the first job was found.
WITH gate AS MATERIALIZED (
    SELECT NULL::integer AS room, :'able'::jsonb AS able, NULL::jsonb AS versions
), entry AS MATERIALIZED (
    SELECT greatest(least(room, :limit), 0) AS room, able, versions,
           :'asks_limits'::boolean AND EXISTS (
               SELECT 1
                 FROM ojs_jobs_queue
                WHERE (concurrency IS NOT NULL OR has_limits)
                  AND name = ANY(:'queues'::text[])) AS is_limited,
           able::text LIKE '%"pool:%' AS is_pooled,
           pg_stat_get_xact_tuples_returned('ojs_job_fetchable'::regclass) AS read_before
      FROM gate
), wanted AS MATERIALIZED (
    SELECT name
      FROM (SELECT unnest(:'queues'::text[]) AS name LIMIT :queue_count) AS named
     WHERE EXISTS (SELECT 1 FROM entry WHERE room > 0 AND NOT is_limited AND NOT is_pooled
                                        AND versions IS NULL)
       AND NOT coalesce((
           SELECT paused_at IS NOT NULL
                  AND coalesce(paused_until > statement_timestamp(), true)
                  OR isolated_by <> ''
             FROM ojs_jobs_queue AS queue
            WHERE queue.name = named.name), false)
       AND NOT EXISTS (SELECT 1
                         FROM ojs_jobs_maintenance
                        WHERE coalesce(until > statement_timestamp(), true))
-- The lateral joins visit queues in the order given and stop at the limit, so only rows about to be
-- claimed are ever locked. MATERIALIZED keeps the planner from running them again for each updated
-- row. For a type whose versions the worker does not declare, both bounds are null: a range of all
-- versions.
), available AS MATERIALIZED (
    SELECT job.id
      FROM wanted
CROSS JOIN LATERAL (
        SELECT id
          FROM ojs_jobs_job
         WHERE state = 'available'
           AND queue = wanted.name
           AND rate_key = ''
           AND (:'types'::text[] = '{}' OR type = ANY(:'types'::text[]))
           AND (needs IS NULL OR needs <@ (SELECT able FROM entry))
           AND (version_number IS NULL OR version_number <@ int8range(
                (:'versions'::jsonb -> type ->> 0)::bigint,
                (:'versions'::jsonb -> type ->> 1)::bigint))
           AND :'project' IN ('', project)
           AND (expires_at IS NULL OR expires_at > statement_timestamp())
      ORDER BY priority DESC, enqueued_at, id
         LIMIT :limit
           FOR UPDATE SKIP LOCKED
      ) AS job
     LIMIT (SELECT room FROM entry)
-- Due jobs are considered only for the places that available ones leave.
), due AS MATERIALIZED (
    SELECT job.id, job.attempt
      FROM wanted
CROSS JOIN LATERAL (
        SELECT id, attempt
          FROM ojs_jobs_job
         WHERE state IN ('scheduled', 'retryable')
           AND queue = wanted.name
           AND rate_key = ''
           AND (:'types'::text[] = '{}' OR type = ANY(:'types'::text[]))
           AND (needs IS NULL OR needs <@ (SELECT able FROM entry))
           AND (version_number IS NULL OR version_number <@ int8range(
                (:'versions'::jsonb -> type ->> 0)::bigint,
                (:'versions'::jsonb -> type ->> 1)::bigint))
           AND :'project' IN ('', project)
           AND scheduled_at <= statement_timestamp()
           AND (expires_at IS NULL OR expires_at > statement_timestamp())
      ORDER BY scheduled_at
         LIMIT :limit
           FOR UPDATE SKIP LOCKED
      ) AS job
     LIMIT greatest((SELECT room FROM entry) - (SELECT count(*) FROM available), 0)
), next AS MATERIALIZED (
    SELECT id, false AS was_due, NULL::integer AS attempts_made FROM available
 UNION ALL
    SELECT id, true, attempt FROM due
), claimed AS (
    UPDATE ojs_jobs_job AS job
       SET state = 'active',
           attempt = job.attempt + CASE WHEN job.attempt_counted THEN 0 ELSE 1 END,
           attempt_counted = false,
           enqueued_at = CASE WHEN next.was_due THEN statement_timestamp()
                              ELSE job.enqueued_at END,
           started_at = statement_timestamp(),
           reserved_by = :'worker_id',
           reserved_for = coalesce(job.visibility_timeout, :'visibility_timeout'::interval),
           reserved_until = statement_timestamp()
                            + coalesce(job.visibility_timeout, :'visibility_timeout'::interval)
      FROM next
     WHERE job.id = next.id
 RETURNING job.*, next.was_due, next.attempts_made
), recorded AS (
    INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time)
    SELECT 'job.enqueued', id::text, queue, type, '', attempts_made, started_at
      FROM claimed
     WHERE was_due AND :'records_events'::boolean
 UNION ALL
    SELECT 'job.started', id::text, queue, type, reserved_by, attempt, started_at
      FROM claimed
     WHERE :'records_events'::boolean
)
-- The database formats the times: parsing and formatting them in Python costs ten times as much. In
-- a separate query, the statement's time is formatted once, not for each job.
SELECT id, type, queue, args::text, meta::text, tags::text, priority, attempt, max_attempts,
       to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
       CASE WHEN enqueued_at <> created_at
            THEN to_char(enqueued_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') END,
       (SELECT to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')),
       retry::text, retry_delay, timeout, visibility_timeout, scheduled_at, expires_at,
       CASE WHEN attributes <> '{}' THEN attributes::text END,
       CASE WHEN attempt > 1 THEN (
            SELECT json_agg(to_json(newest) ORDER BY newest.id)::text
              FROM (SELECT *
                      FROM ojs_jobs_joberror AS error
                     WHERE error.job_id = claimed.id
                  ORDER BY id DESC
                     LIMIT :errors_shown) AS newest) END,
       workflow_id, parent_results::text,
       (SELECT jsonb_build_object('state', kept.state, 'sequence', kept.sequence)::text
          FROM ojs_jobs_checkpoint AS kept
         WHERE kept.job_id = claimed.id AND NOT kept.is_cleared),
       CASE WHEN is_limited OR is_pooled OR versions IS NOT NULL
            THEN jsonb_build_array(room, able, versions, is_limited, is_pooled)::text
            WHEN (SELECT pg_stat_get_xact_tuples_returned('ojs_job_fetchable'::regclass))
                 > read_before + :many
            THEN 'true' END
  FROM entry
  LEFT JOIN claimed ON true
 ORDER BY array_position(:'queues'::text[], queue::text), priority DESC, enqueued_at, id;
