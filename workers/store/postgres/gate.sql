-- Whether a worker may have more jobs, how many, and which: `fetching.gate.evaluate` in SQL.
-- Replaces the gate in the claim statement of the jobs app.

\set worker_id 'worker-1'

SELECT CASE WHEN worker.worker_id IS NULL THEN NULL
            WHEN NOT (worker.state = 'running' AND worker.directive IN ('', 'running')
                      OR worker.state = 'quiet' AND worker.directive = 'running') THEN 0
            WHEN worker.concurrency IS NULL THEN NULL
            ELSE worker.concurrency - (
                 SELECT count(*)
                   FROM ojs_jobs_job
                  WHERE reserved_by = me.id
                    AND reserved_for IS NOT NULL
                    AND (worker.project = '' OR project IN ('', worker.project)))
            END AS room,
       CASE WHEN me.id = '' THEN '[]' ELSE (
            SELECT coalesce(jsonb_agg(word), '[]')
              FROM jsonb_array_elements_text(worker.labels || worker.capabilities) AS word
             WHERE NOT starts_with(word, 'worker:'))
            || to_jsonb('worker:' || regexp_replace(me.id, '^.*@/', ''))
            END AS able,
       nullif(worker.job_versions, '{}') AS versions
  FROM (SELECT :'worker_id'::varchar(255) AS id) AS me
  LEFT JOIN ojs_workers_worker AS worker ON worker.worker_id = me.id;
