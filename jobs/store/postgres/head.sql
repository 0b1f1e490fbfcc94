-- Finds the first available job of a queue, from where the queue was last known to begin.

\set queue 'default'
\set urgency 0
\set level '-infinity'
\set above '-infinity'
\set below '-infinity'

-- As in a claim, the one range of the index becomes three: `heads.in_ranges`.
WITH wanted AS MATERIALIZED (
    SELECT :'queue' AS name, :'urgency'::integer AS urgency, :'level'::timestamptz AS level,
           :'above'::timestamptz AS above, :'below'::timestamptz AS below,
           pg_stat_get_xact_tuples_returned('ojs_job_fetchable'::regclass) AS read_before
)
SELECT priority, enqueued_at, statement_timestamp(),
       (SELECT pg_stat_get_xact_tuples_returned('ojs_job_fetchable'::regclass)) - read_before
  FROM wanted
  LEFT JOIN LATERAL (
        SELECT job.*
          FROM (
        SELECT priority, enqueued_at
          FROM ojs_jobs_job
         WHERE state = 'available'
           AND queue = wanted.name
           AND rate_key = ''
      ORDER BY priority DESC, enqueued_at, id
         LIMIT 1
               ) AS job
         LIMIT 1
       ) AS first ON true;
