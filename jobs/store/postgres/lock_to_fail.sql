-- Locks jobs, in the order of their ids, with what a failed attempt needs to know of them (FAIL, OJS
-- core §7.4).

\set ids '{019539a4-0000-7000-8000-000000000001}'

  SELECT id, type, queue, state, attempt, max_attempts, retry::text, timeout, deadline,
         reserved_by, started_at, followed, attributes::text, rate_key, statement_timestamp()
    FROM ojs_jobs_job
   WHERE id = ANY(:'ids'::uuid[])
ORDER BY id
     FOR UPDATE;
