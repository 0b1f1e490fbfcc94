"""How long the admin's pages take with a million jobs and a thousand workers, and their queries.

    DATABASE_URL=postgresql://… python -m tests.benchmarks.pages

fills the database it is given (once) and prints a line for each page: median, slowest, queries.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

JOBS = 1_000_000
WORKERS = 1_000
ROUNDS = 7
FILL_JOBS = """
    INSERT INTO ojs_jobs_job
           (id, type, queue, args, meta, priority, state, attempt, attempt_counted, max_attempts,
            reserved_by, reserved_until, started_at, finished_by, finished_at, unfenced,
            scheduled_at, created_at, enqueued_at, tags, attributes, dead_letter)
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '7'
            || lpad(to_hex(n %% 4096), 3, '0') || 'a' || substr(md5(n::text), 1, 15))::uuid,
           'type-' || n %% 40, 'queue-' || n %% 10, jsonb_build_array(n, 'user@example.com'), '{}',
           0, state, 1, false, 3,
           CASE state WHEN 'active' THEN 'worker-' || n %% 1000 ELSE '' END,
           CASE state WHEN 'active' THEN now() + interval '30 min' END,
           CASE WHEN state NOT IN ('available', 'scheduled') THEN moment + interval '2 s' END,
           CASE WHEN state IN ('completed', 'discarded') THEN 'worker-' || n %% 1000 ELSE '' END,
           CASE WHEN state IN ('completed', 'discarded', 'cancelled')
                THEN moment + interval '3 s' END,
           false, CASE WHEN state IN ('scheduled', 'retryable') THEN now() + interval '1 h' END,
           moment, moment, '["a"]', '{}', state = 'discarded'
      FROM (SELECT n, now() - (%(jobs)s - n) * interval '600 ms' AS moment,
                   CASE WHEN n %% 100 < 60 THEN 'completed' WHEN n %% 100 < 61 THEN 'discarded'
                        WHEN n %% 100 < 62 THEN 'cancelled' WHEN n %% 100 < 64 THEN 'scheduled'
                        WHEN n %% 100 < 65 THEN 'retryable' WHEN n %% 1000 = 999 THEN 'active'
                        ELSE 'available' END AS state
              FROM generate_series(1, %(jobs)s) AS n) AS rows
"""
FILL_ERRORS = """
    INSERT INTO ojs_jobs_joberror (job_id, attempt, type, code, message, worker_id, occurred_at)
    SELECT id, 1, 'error-' || substr(id::text, 36), '', 'It broke.', '', finished_at
      FROM ojs_jobs_job WHERE state = 'discarded'
"""
PAGES = {
    "dashboard, 1 hour": "ojs_workers/dashboard/",
    "dashboard, 24 hours": "ojs_workers/dashboard/?range=24h",
    "dashboard, 7 days": "ojs_workers/dashboard/?range=7d",
    "workers": "ojs_workers/worker/",
    "workers with a label": "ojs_workers/worker/?label=blue",
    "jobs": "ojs_jobs/job/",
    "jobs, half a million rows on": "ojs_jobs/job/?older={middle}",
    "jobs, discarded": "ojs_jobs/job/?state=discarded",
    "jobs, type and queue": "ojs_jobs/job/?type=type-7&queue=queue-7",
    "jobs, search by type": "ojs_jobs/job/?q=type:type-7",
    "jobs, search by tag and worker": "ojs_jobs/job/?q=tag:a+worker:worker-7",
    "jobs, a type there is not": "ojs_jobs/job/?q=type:nothing",
    "jobs, search in arguments": "ojs_jobs/job/?q=args.0:999",
    "dead letter": "ojs_jobs/deadjob/",
    "dead letter by error, 24 hours": "ojs_jobs/deadjob/?error=error-7&since=24h",
    "queues": "ojs_jobs/queue/",
}


def fill() -> None:
    from django.db import connection
    from django.utils import timezone

    from jobs import rollup
    from jobs.models import Job, Queue
    from workers import fleet_sample, reaper
    from workers.models import Worker

    if Job.objects.exists():
        return
    with connection.cursor() as cursor:
        cursor.execute(FILL_JOBS, {"jobs": JOBS})
        cursor.execute(FILL_ERRORS)
    Queue.objects.bulk_create([Queue(name=f"queue-{n}") for n in range(10)])
    now = timezone.now()
    Worker.objects.bulk_create(
        Worker(
            worker_id=f"worker-{n}",
            hostname=f"host-{n % 50}",
            queues=[f"queue-{n % 10}"],
            labels=["blue" if n % 2 else "green"],
            concurrency=10,
            last_heartbeat_at=now,
        )
        for n in range(WORKERS)
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    started = time.perf_counter()
    while rollup.step():
        pass
    print(f"roll-ups of a million jobs: {time.perf_counter() - started:.1f} s")
    rollup.sample()
    fleet_sample.sample()
    reaper.sign_of_life("bench:1")


def measure() -> None:
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext
    from django.utils import timezone

    from jobs.models import Job
    from workers import reaper
    from workers.models import Worker

    user, _ = User.objects.get_or_create(username="bench", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user)
    print(f"{'page':36}{'median ms':>10}{'slowest':>9}{'queries':>9}")
    middle = Job.objects.order_by("pk").values_list("pk", flat=True)[JOBS // 2]
    for name, address in PAGES.items():
        url = address.format(middle=middle)
        Worker.objects.update(last_heartbeat_at=timezone.now())
        reaper.sign_of_life("bench:1")
        client.get(f"/admin/{url}")
        times = []
        for _round in range(ROUNDS):
            started = time.perf_counter()
            reply: Any = client.get(f"/admin/{url}")
            times.append((time.perf_counter() - started) * 1000)
            assert reply.status_code == 200, (url, reply.status_code)
        with CaptureQueriesContext(connection) as captured:
            client.get(f"/admin/{url}")
        print(f"{name:36}{statistics.median(times):10.0f}{max(times):9.0f}{len(captured):9}")
        if os.environ.get("SLOW"):
            for query in sorted(captured, key=lambda each: -float(each["time"]))[:2]:
                print("      ", query["time"], query["sql"][:900])


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")
    os.environ.setdefault("DJANGO_SECRET_KEY", "only-for-this-benchmark" * 3)
    os.environ.setdefault("DJANGO_ALLOWED_HOSTS", "*")
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    fill()
    measure()
    sys.exit(0)
