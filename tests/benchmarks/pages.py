"""Durations, queries and sizes of the admin's pages with a million jobs and a thousand workers.

    DATABASE_URL=postgresql://… python -m tests.benchmarks.pages

Fills the given database (once) and prints a line for each page: median, slowest, queries, size,
and whether that is within the goal; a file named as argument receives the results. `ONLY=search`
measures the pages with this in their name, `SLOW=1` adds the two slowest queries of each,
`JOBS=10000` takes fewer jobs and `ROUNDS=1` fewer requests: queries and sizes are the same.
Besides the pages below, every page that the admin has is measured, found by its own patterns.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.processes import free_port

from . import filling, servers
from .filling import Kind, Part
from .places import PAGES as PLACE
from .results import Results

if TYPE_CHECKING:
    from django.test import Client

JOBS = int(os.environ.get("JOBS", "1000000"))
WORKERS = 1_000
ROUNDS = int(os.environ.get("ROUNDS", "7"))
MIXED = Kind(
    state="CASE WHEN n %% 100 < 60 THEN 'completed' WHEN n %% 100 < 61 THEN 'discarded'"
    " WHEN n %% 100 < 62 THEN 'cancelled' WHEN n %% 100 < 64 THEN 'scheduled'"
    " WHEN n %% 100 < 65 THEN 'retryable' WHEN n %% 1000 = 999 THEN 'active'"
    " ELSE 'available' END",
    type="n %% 40",
    queue="n %% 10",
    worker="n %% 1000",
)
PAGES = {
    "dashboard, 1 hour": "ojs_workers/dashboard/",
    "dashboard, 24 hours": "ojs_workers/dashboard/?range=24h",
    "dashboard, 7 days": "ojs_workers/dashboard/?range=7d",
    "workers": "ojs_workers/worker/",
    "workers, page 10": "ojs_workers/worker/?p=10",
    "workers, search": "ojs_workers/worker/?q=host-7",
    "workers, busiest first": "ojs_workers/worker/?o=-4",
    "workers, one": "ojs_workers/worker/worker-77/change/",
    **{
        f"workers by {name}": f"ojs_workers/worker/?{name}={value}"
        for name, value in {
            "state": "running",
            "desired": "running",
            "directive": "none",
            "label": "blue",
            "queue": "queue-7",
            "host": "host-7",
            "version": "2.0",
            "protocol": "ojs",
            "stale": "no",
            "group": "label",
        }.items()
    },
    "workers grouped by host": "ojs_workers/worker/?group=host",
    "jobs": "ojs_jobs/job/",
    "jobs, half a million rows on": "ojs_jobs/job/?older={middle}",
    **{
        f"jobs, {state}": f"ojs_jobs/job/?state={state}"
        for state in ("available", "active", "scheduled", "retryable", "completed", "cancelled")
    },
    "jobs, discarded": "ojs_jobs/job/?state=discarded",
    "jobs, pending": "ojs_jobs/job/?state=pending",
    "jobs, queue": "ojs_jobs/job/?queue=queue-7",
    "jobs, type and queue": "ojs_jobs/job/?type=type-7&queue=queue-7",
    "jobs, completed of a type": "ojs_jobs/job/?state=completed&type=type-7",
    "jobs, discarded of a queue there is not": "ojs_jobs/job/?state=discarded&queue=none",
    "jobs, last 24 hours": "ojs_jobs/job/?since=24h",
    "jobs, type, last 24 hours": "ojs_jobs/job/?since=24h&type=type-7",
    **{
        f"search {text}": f"ojs_jobs/job/?q={quote(text)}"
        for text in (
            "type:type-7",
            "type:nothing",
            "queue:queue-7",
            "queue:nothing",
            "tag:a",
            "tag:nothing",
            "worker:worker-65",
            "worker:nothing",
            "worker:worker-999",
            "tag:a worker:worker-65",
            "args.0:999",
            "args.1:user@example.com",
            "meta.tenant:acme",
            "error:error-7",
            "error:nothing",
            "error:error-7 type:type-20",
            "id:{middle}",
            "{middle}",
            "type-7",
            "nothing",
            "state:retryable",
            "state:completed queue:nothing",
            "project:acme",
            "type:type-7 before:{earlier}",
            "args.0:999 before:{earlier}",
            "error:error-7 after:{earlier}",
        )
    },
    "search type:nothing, last 24 hours": "ojs_jobs/job/?since=24h&q=type:nothing",
    "search tag:nothing, completed": "ojs_jobs/job/?state=completed&q=tag:nothing",
    "search args.0:999, discarded": "ojs_jobs/job/?state=discarded&q=args.0:999",
    "search error:error-7, discarded": "ojs_jobs/job/?state=discarded&q=error:error-7",
    "dead letter": "ojs_jobs/deadjob/",
    "dead letter, last page": "ojs_jobs/deadjob/?older={dead}",
    "dead letter by type": "ojs_jobs/deadjob/?type=type-20",
    "dead letter by queue": "ojs_jobs/deadjob/?queue=queue-0",
    "dead letter by error": "ojs_jobs/deadjob/?error=error-7",
    "dead letter by error, 24 hours": "ojs_jobs/deadjob/?error=error-7&since=24h",
    "dead letter, search error:error-7": "ojs_jobs/deadjob/?q=error:error-7",
    "dead letter, search args.0:999": "ojs_jobs/deadjob/?q=args.0:999",
    "one job": "ojs_jobs/job/{middle}/change/",
    "queues": "ojs_jobs/queue/",
    "events": "ojs_jobs/event/",
    "operator actions": "ojs_jobs/operatoraction/",
    "operator actions, search": "ojs_jobs/operatoraction/?q=worker-77",
    "fleet map": "ojs_workers/worker/map/",
    "fleet map by label": "ojs_workers/worker/map/?group=label",
    **{
        f"by {kind}, {span}": f"ojs_workers/dashboard/breakdown/?by={kind}&range={span}&order=run"
        for kind in ("type", "queue")
        for span in ("1h", "24h", "7d")
    },
    "one type": "ojs_workers/dashboard/breakdown/?by=type&name=type-7&range=7d",
    "one queue": "ojs_workers/dashboard/breakdown/?by=queue&name=queue-7&range=7d",
    "palette": "ojs_workers/dashboard/find/?q=type-7",
    "new job, of a type with a schema": "ojs_jobs/job/add/?type=type-7",
}
GOAL, QUERIES, SIZE = 300, 15, 50
"""Milliseconds and queries that a page may take, and kilobytes that it may have, compressed."""


def fill() -> None:
    from django.utils import timezone

    from jobs.models import Job

    if Job.objects.exists():
        return
    now = timezone.now()
    filling.add(Part("mixed", MIXED, JOBS, JOBS * timedelta(milliseconds=600)), 1, range(JOBS), now)
    filling.queues(10)
    filling.workers(WORKERS, queues=10, hosts=50)
    filling.execute("VACUUM ANALYZE")
    derive()
    fill_the_rest()


def derive() -> None:
    """Make what the reaper makes of jobs and workers for the pages."""
    from jobs.record import rollup
    from workers.chores import reaper
    from workers.fleet import samples as fleet_sample

    started = time.perf_counter()
    while rollup.step():
        pass
    print(f"roll-ups of the last week: {time.perf_counter() - started:.1f} s")
    rollup.sample()
    fleet_sample.sample()
    reaper.sign_of_life("bench:1")


def fill_the_rest() -> None:
    """A hundred cron jobs, keys and actions, and at least a row of everything else."""
    from jobs import engine
    from jobs.access.audit import of_shell, record_action
    from jobs.http.authentication import make_key
    from jobs.models import JobSchema, RateLimit, RefusedFinish
    from jobs.record import rollup
    from jobs.spec.identifiers import uuid7
    from tests.browser.records import configure, etl
    from tests.factories import JobFactory, QueueFactory, ago
    from workers.alerts import evaluation
    from workers.fleet import drain, orders
    from workers.lifecycle import WorkerState
    from workers.models import AlertRule, Worker

    etl("queue-of-workflows")
    # No worker serves it: this raises an alert.
    QueueFactory(name="search")
    JobFactory(queue="search", created_at=ago(500))
    configure()
    # Of very many queues, rules look at those that are in the samples.
    rollup.sample()
    evaluation.test(AlertRule.objects.get(name="No worker"))
    members = {f"member-{n}": {"type": "string", "enum": ["a", "b"]} for n in range(20)}
    JobSchema.objects.create(
        type="type-7", version="1", version_number=1, schema={"items": {"properties": members}}
    )
    engine.register_specs({f"type-{n}": f"v{n}" for n in range(40)})
    for n in range(100):
        template = {"type": f"type-{n % 40}", "args": [], "options": {"queue": "queue-1"}}
        engine.upsert_cron(engine.NewCronJob(f"cron-{n}", "*/15 * * * *", template))
        make_key(f"key-{n}", scopes=["produce"], project=f"project-{n % 5}")
        RateLimit.objects.create(key=f"limit-{n}", policy={"concurrency": 4})
        record_action(of_shell(), "pause_queue", kind="queue", count=1, selection={"ids": ["q"]})
        RefusedFinish.objects.create(
            job_id=uuid7(), operation="ack", worker_id=f"worker-{n}", state="active"
        )
    named = [f"worker-{n}" for n in range(100)]
    drain.start(named, actor=of_shell(), floor="default=50%")
    orders.order(Worker.objects.filter(pk__in=named), WorkerState.QUIET, actor=of_shell())


def every_other_page(known: dict[str, str]) -> dict[str, str]:
    """The pages of the admin that are not in `known`, by the names of their addresses."""
    from jobs.models import CronJob, Job, OperatorAction, Workflow
    from tests.browser import walk
    from workers.models import Worker

    chosen = {
        Job: Job.objects.latest("pk"),
        CronJob: CronJob.objects.get(pk="cron-7"),
        Workflow: Workflow.objects.latest("pk"),
        Worker: Worker.objects.get(pk="worker-77"),
    }
    order = OperatorAction.objects.filter(verb="quiet_worker").latest("pk").pk
    urls = {url.removeprefix("/admin/"): name for name, url in walk.pages(walk.Rows(chosen, order))}
    return {name: url for url, name in urls.items() if url not in known.values()}


@contextmanager
def server(**environ: str) -> Iterator[http.client.HTTPConnection]:
    """A server of one process in production configuration, with this process's environment.

    Args:
        environ: what is different in its own.
    """
    port = free_port()
    with servers.serve(servers.command(port, 1), port, 1, dict(os.environ) | environ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=servers.PATIENCE)
        with closing(connection):
            yield connection


def signed_in() -> tuple[Client, dict[str, str]]:
    """A superuser in this process, and the headers with which a server knows the same one."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    user, _ = User.objects.get_or_create(username="bench", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user)
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    return client, {
        "Accept-Encoding": "gzip",
        "Cookie": f"{settings.SESSION_COOKIE_NAME}={session}",
    }


def measure(results: Results, group: str = PLACE) -> None:
    """Measure every page with what the database is filled with.

    Times and sizes are those of a server; queries are counted in this process.
    """
    with server() as connection:
        _measure(results, group, connection)


def _measure(results: Results, group: str, server: http.client.HTTPConnection) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext
    from django.utils import timezone

    from jobs.models import Job
    from jobs.spec.identifiers import first_id, moment_of
    from workers.chores import reaper
    from workers.models import Worker

    client, headers = signed_in()

    def page(url: str) -> bytes:
        server.request("GET", f"/admin/{url}", headers=headers)
        response = server.getresponse()
        body = response.read()
        assert response.status == 200, (url, response.status)
        return body

    print(f"{'page':44}{'median ms':>10}{'slowest':>9}{'queries':>9}{'kB':>7}")
    ids = Job.objects.order_by("pk").values_list("pk", flat=True)
    # Jobs came evenly, so this one is in the middle; an OFFSET would read half the table.
    first, last = (moment_of(some[0]) for some in (ids[:1], ids.reverse()[:1]))
    middle = ids.filter(pk__gte=first_id(first + (last - first) / 2))[0]
    dead = Job.objects.dead().order_by("finished_at")
    died, dead_id = dead.values_list("finished_at", "pk")[50]
    places = {
        "middle": middle,
        "earlier": f"{moment_of(middle):%Y-%m-%d}",
        "dead": f"{died:%Y-%m-%dT%H:%M:%S.%f}Z~{dead_id}",
    }
    missed = 0
    medians: dict[str, float] = {}
    queries: dict[str, int] = {}
    sizes: dict[str, float] = {}
    for name, address in (PAGES | every_other_page(PAGES)).items():
        if not re.search(os.environ.get("ONLY", ""), name):
            continue
        url = address.replace("%7B", "{").replace("%7D", "}").format(**places)
        Worker.objects.update(last_heartbeat_at=timezone.now())
        reaper.sign_of_life("bench:1")
        if ROUNDS > 1:
            page(url)
        times = []
        for _round in range(ROUNDS):
            started = time.perf_counter()
            body = page(url)
            times.append((time.perf_counter() - started) * 1000)
        with CaptureQueriesContext(connection) as captured:
            client.get(f"/admin/{url}")
        median = statistics.median(times)
        size = len(body) / 1000
        is_met = median < GOAL and len(captured) <= QUERIES and size <= SIZE
        missed += not is_met
        mark = "" if is_met else "  missed"
        results.get(group, name, "ms").rounds += times
        results.get(group, name).note = f"({len(captured)} queries, {size:.0f} kB)"
        medians[name] = median
        queries[name], sizes[name] = len(captured), size
        print(
            f"{name:44}{median:10.0f}{max(times):9.0f}{len(captured):9}{size:7.1f}{mark}",
            flush=True,
        )
        if os.environ.get("SLOW"):
            for query in sorted(captured, key=lambda each: -float(each["time"]))[:2]:
                print("      ", query["time"], query["sql"][:900])
    print(f"{missed} pages miss {GOAL} ms, {QUERIES} queries or {SIZE} kB.")
    results.get(group, "slowest", "ms").rounds.append(max(medians.values()))
    results.get(group, "slowest").note = f"({max(medians, key=lambda name: medians[name])})"
    results.get(group, "most queries", "").rounds.append(max(queries.values()))
    results.get(group, "largest", "kB").rounds.append(max(sizes.values()))
    results.get(group, "largest").note = f"({max(sizes, key=lambda name: sizes[name])})"


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")
    os.environ.setdefault("DJANGO_SECRET_KEY", "only-for-this-benchmark" * 3)
    os.environ.setdefault("DJANGO_ALLOWED_HOSTS", "*")
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    fill()
    found = Results()
    measure(found)
    for file in sys.argv[1:]:
        Path(file).write_text(json.dumps({"postgres": found.documents()}, indent=2))
    sys.exit(0)
