-- Finds the first available job of a queue, from where the queue was last known to begin.

\set queue 'default'
\set urgency 0
\set level '-infinity'
\set above '-infinity'
\set below '-infinity'

WITH counted AS MATERIALIZED (
    SELECT pg_stat_get_xact_tuples_returned('ojs_job_fetchable'::regclass) AS read_before
)
SELECT priority, enqueued_at, statement_timestamp(),
       (SELECT pg_stat_get_xact_tuples_returned('ojs_job_fetchable'::regclass)) - read_before
  FROM counted
  LEFT JOIN LATERAL (
        (SELECT priority, enqueued_at
           FROM ojs_jobs_job
          WHERE state = 'available'
            AND queue = :'queue'
            AND rate_key = ''
            AND priority > :'urgency'::integer
            AND enqueued_at >= :'above'::timestamptz
       ORDER BY priority DESC, enqueued_at, id
          LIMIT 1)
  UNION ALL
        (SELECT priority, enqueued_at
           FROM ojs_jobs_job
          WHERE state = 'available'
            AND queue = :'queue'
            AND rate_key = ''
            AND priority = :'urgency'::integer
            AND enqueued_at >= :'level'::timestamptz
       ORDER BY priority DESC, enqueued_at, id
          LIMIT 1)
  UNION ALL
        (SELECT priority, enqueued_at
           FROM ojs_jobs_job
          WHERE state = 'available'
            AND queue = :'queue'
            AND rate_key = ''
            AND priority < :'urgency'::integer
            AND enqueued_at >= :'below'::timestamptz
       ORDER BY priority DESC, enqueued_at, id
          LIMIT 1)
      LIMIT 1
       ) AS first ON true;
