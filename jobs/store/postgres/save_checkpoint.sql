-- Keeps a state for the job's next attempt (OJS durable execution §4.1).
--
-- One guarded statement, and no lock on the job: a handler may save inside its own transaction, and
-- must not block the worker's heartbeats for as long as that lasts. The attempt number refuses what
-- an older attempt saves after a newer one.

\set job_id '019539a4-0000-7000-8000-000000000001'
\set state '{"page": 3}'
\set now '2026-01-01 00:00:00+00'
\set worker_id 'worker-1'
\set attempt 1

INSERT INTO ojs_jobs_checkpoint AS kept
       (job_id, state, sequence, attempt, is_cleared, saved_at)
SELECT id, :'state'::jsonb, 1, attempt, false, :'now'::timestamptz
  FROM ojs_jobs_job
 WHERE id = :'job_id'::uuid
   AND state NOT IN ('cancelled', 'completed', 'discarded')
   AND (:'worker_id'::text IS NULL OR (state = 'active' AND reserved_by = :'worker_id'))
   AND (:'attempt'::integer IS NULL OR (state = 'active' AND attempt = :'attempt'::integer))
    ON CONFLICT (job_id) DO UPDATE
   SET state = excluded.state,
       sequence = kept.sequence + 1,
       attempt = excluded.attempt,
       is_cleared = excluded.is_cleared,
       saved_at = excluded.saved_at
 WHERE kept.attempt <= excluded.attempt
RETURNING sequence;
