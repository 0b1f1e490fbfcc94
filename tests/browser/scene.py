"""A fleet at work: the data of the pages in the tests and in `docs/pictures`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from jobs import engine
from jobs.access.audit import of_shell
from jobs.models import Job, RateLimit, Rollup
from jobs.record import rollup
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, WorkerFactory, ago, ahead
from workers.chores import reaper
from workers.fleet import drain
from workers.models import FleetOperation, FleetSample

TYPES = ("email.send", "invoice.render", "image.resize", "report.build", "search.index")


@dataclass(frozen=True)
class Scene:
    waiting: Job
    dead: Job
    operation: FleetOperation


def draw() -> Scene:
    """Rows that give every part of every page something to show."""
    reaper.sign_of_life("web-1:41")
    _an_hour_of_figures()
    _a_fleet()
    dead = _a_dead_letter()
    waiting = _queues()
    operation = drain.start(
        [f"web-{number}" for number in range(1, 9)],
        actor=of_shell(),
        max_unavailable="2",
        floor="mail=40 default=50%",
        reason="Release 42",
        selection={"label": ["blue"]},
    )
    reaper.sweep(["fleet-operations"])
    return Scene(waiting, dead, operation)


def _an_hour_of_figures() -> None:
    now = rollup.floor(timezone.now(), rollup.MINUTE)
    Rollup.objects.bulk_create(
        Rollup(
            resolution=60,
            start=now - timedelta(minutes=back),
            enqueued=int(700 + 160 * math.sin(back / 7)),
            completed=int(690 + 150 * math.sin((back - 1) / 7)),
            failed=int(18 + 14 * math.sin(back / 3)) + (160 if 20 < back < 24 else 0),
            waits={str(9 + back // 15): 90, str(15 + back % 5 // 2): 8, "20": 2},
            runs={str(13 + back // 30): 90, str(17 + back % 7 // 4): 9},
            available=int(320 + 240 * math.sin(back / 9)),
            active=int(44 + 8 * math.sin(back / 5)),
            delayed=120 + back,
        )
        for back in range(1, 60)
    )
    FleetSample.objects.bulk_create(
        FleetSample(
            resolution=60,
            start=now - timedelta(minutes=back),
            running=12 - (4 if 20 < back < 30 else 0),
            quiet=4 if 20 < back < 30 else 0,
            terminate=2 if 19 < back < 23 else 0,
            silent=1 if back < 4 else 0,
        )
        for back in range(1, 60)
    )


def _a_fleet() -> None:
    for number in range(1, 13):
        worker = WorkerFactory(
            worker_id=f"web-{number}",
            hostname=f"host-{1 + number % 4}",
            pid=4100 + number,
            queues=["mail", "default"] if number % 3 else ["images"],
            labels=["blue" if number < 9 else "green", "eu"],
            version="shop/4.1",
            concurrency=10,
            started_at=ago(7000 + 100 * number),
            last_heartbeat_at=ago(number % 5),
            heartbeat_timeout=timedelta(hours=1),  # no heartbeats while the pages are open
            jobs_done=1800 + 37 * number,
            jobs_failed=number % 4,
        )
        for _ in range(0 if number == 2 else 1 + number * 5 % 7):
            JobFactory(
                active=True,
                type=TYPES[number % 5],
                queue=worker.queues[0],
                reserved_by=worker.pk,
                started_at=ago(20),
            )
    WorkerFactory(worker_id="web-13", silent=True, queues=["images"], labels=["green"])
    held = JobFactory(active=True, queue="images", type="image.resize", reserved_by="web-13")
    assert held


def _a_dead_letter() -> Job:
    errors = (("smtp_down", 7), ("timeout", 4), ("handler_error", 3))
    for place, (error, count) in enumerate(errors):
        for number in range(count):
            job = JobFactory(
                dead=True,
                type=TYPES[(place + number) % 3],
                queue="mail",
                args=[{"order": 4200 + number, "token": "x"}],
                finished_at=ago(400 + 9000 * number * number),
            )
            message = "The mail server did not answer within 10 s."
            JobErrorFactory(job=job, type=error, message=message, attempt=3)
    dead = JobFactory(
        dead=True,
        type="email.send",
        queue="mail",
        attempt=3,
        args=[{"to": "ann@example.com", "password": "x"}],
        created_at=ago(4000),
        started_at=ago(310),
        finished_at=ago(300),
        finished_by="web-3",
    )
    for attempt in range(1, 4):
        JobErrorFactory(
            job=dead,
            attempt=attempt,
            type="smtp_down",
            worker_id=f"web-{attempt}",
            occurred_at=ago(4000 / attempt),
            backtrace=["mail.py, line 41, in send", "smtplib.py, line 341, in connect"],
        )
    return dead


def _queues() -> Job:
    QueueFactory(name="mail")
    QueueFactory(name="default")
    QueueFactory(name="search", paused_at=ago(600), paused_by="ops", pause_reason="Disk is full")
    images = QueueFactory(name="images", concurrency=24)
    engine.queues.configure(
        images.pk, {"rate_limit": {"rate": {"limit": 600, "period": "PT1M"}}}, create=False
    )
    RateLimit.objects.create(
        pk="payments",
        policy={"concurrency": 4, "rate": {"limit": 100, "period": "PT1M"}},
        override={"concurrency": 2},
        override_until=ahead(3600),
        held_until=ahead(600),
        exceeded_at=ago(90),
    )
    for number in range(36):
        queue = ("mail", "default", "search")[number % 3]
        JobFactory(queue=queue, type=TYPES[number % 5], created_at=ago(2 * number))
    for number in range(4):
        JobFactory(queue="default", scheduled=True, scheduled_at=ahead(600 * (number + 1)))
    JobErrorFactory(job=JobFactory(queue="mail", retryable=True, scheduled_at=ahead(40)))
    return JobFactory(
        queue="search", type="search.index", created_at=ago(500), args=[{"shop": 7, "full": True}]
    )
