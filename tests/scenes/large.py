"""A large installation at work: 1,000 workers, 54 types, 20 queues, 40 kinds of errors, a day.

Rows are inserted in bulk, with their times in the past; whatever is *derived* from them (roll-ups,
samples, runs of cron jobs, orders, drains, the audit) is made by the real functions, some of them
with this process's clock set back. The same every time, except for the time of day.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.utils import timezone

from jobs import engine
from jobs.access.audit import Actor, record_action
from jobs.http.authentication import make_key
from jobs.models import (
    Job,
    JobError,
    JobSchema,
    Pool,
    Queue,
    RefusedFinish,
    Source,
    Tenant,
    Workflow,
)
from jobs.record import parts, rollup
from jobs.spec.identifiers import first_id
from jobs.spec.lifecycle import State
from jobs.spec.workflow_plans import plan_of
from tests import clocks
from tests.database import connection
from workers import protocol
from workers.alerts import evaluation
from workers.chores import reaper
from workers.fleet import drain, marks, orders, samples
from workers.lifecycle import WorkerState
from workers.models import AlertRule, WebhookSubscription, Worker
from workers.webhooks import fan_out, subscriptions

FAMILIES = {
    "billing": "charge capture refund dunning invoice payout",
    "email": "send digest welcome receipt bounce unsubscribe",
    "image": "resize crop thumbnail watermark optimise classify",
    "video": "transcode preview caption chapter upload archive",
    "search": "index reindex suggest rank prune snapshot",
    "order": "confirm pack ship cancel return follow-up",
    "report": "build daily weekly export share audit",
    "stock": "sync reserve release count forecast reprice",
    "user": "import export merge erase score notify",
}
TYPES = tuple(f"{family}.{verb}" for family, verbs in FAMILIES.items() for verb in verbs.split())
QUEUES = (
    *FAMILIES,
    *("default", "bulk", "urgent", "webhooks", "exports", "imports"),
    *("nightly", "partners", "ml", "legacy", "eu-only"),
)
ERRORS = tuple(
    f"{what}_{how}"
    for what in ("smtp", "http", "database", "payment", "storage", "codec", "schema", "partner")
    for how in ("timeout", "refused", "down", "invalid", "quota")
)
LABELS = ("blue", "green")
ZONES = ("eu-1", "eu-2", "us-1")
VERSIONS = ("shop/4.2.1", "shop/4.2.0", "shop/4.1.7", "shop/3.9.0")
RELEASES = {"shop/4.1.7": "shop-4.1", "shop/4.2.0": "shop-4.2"}
PROTOCOLS = ("ojs", "ojs", "ojs", "flare", "agq")
CONCURRENCIES = (4, 8, 8, 16, 16, 32)
NOW_FAILING = "smtp_down"
"""The error that began within the last hour: few in all, and the one to act on."""
SLOWEST = "video.transcode"
BROKEN = "partner_refused"
OPERATORS = ("ann", "ben", "chloe", "dmitri")
DAY = timedelta(hours=24)
QUARTER = timedelta(minutes=15)
MINUTE = timedelta(minutes=1)


@dataclass
class Large:
    """What a test looks for in it."""

    now: datetime
    waiting: Job
    """An available job of a queue that was paused."""
    running: Job
    dead: Job
    """One of those that failed with `NOW_FAILING`."""
    quieted_label: str = "shop-4.1"
    drained_label: str = "shop-4.2"
    """Labels of workers that live, and are in no drain."""
    terminated: str = ""
    """A worker that `terminated_by` terminated."""
    terminated_by: str = "chloe"
    paused_queue: str = "partners"
    failed_lately: int = 0
    """How many are in the dead letter with `NOW_FAILING`, all within the last hour."""
    workflows: list[Workflow] = field(default_factory=list)


def draw(
    *,
    workers: int = 1000,
    finished: int = 6000,
    waiting: int = 1500,
    sampled: timedelta = 2 * QUARTER,
) -> Large:
    """Fill an empty database.

    Args:
        finished: jobs that ended within the last day.
        waiting: jobs that wait now, in all states of waiting.
        sampled: time between two samples of the day.
    """
    return _Scene(workers, finished, waiting, sampled).draw()


class _Scene:
    def __init__(self, workers: int, finished: int, waiting: int, sampled: timedelta) -> None:
        self.sampled = sampled
        self.dice = random.Random(42)
        self.now = timezone.now()
        self.sizes = (workers, finished, waiting)
        self.errors: list[JobError] = []
        self.live: list[Worker] = []

    def draw(self) -> Large:
        workers, finished, waiting = self.sizes
        reaper.sign_of_life("web-1:41")
        Queue.objects.bulk_create(Queue(name=name) for name in QUEUES)
        self._fleet(workers)
        self._finished(finished)
        self._dead_letter()
        self._waiting(waiting)
        running = self._running()
        self._day()
        JobError.objects.bulk_create(self.errors, batch_size=500)
        self._roll_up()
        self._limits()
        large = Large(
            self.now,
            waiting=Job.objects.filter(queue="partners", state=State.AVAILABLE).earliest("pk"),
            running=running,
            dead=Job.objects.filter(state=State.DISCARDED, errors__type=NOW_FAILING).latest("pk"),
            failed_lately=NOW_FAILING_COUNT,
        )
        large.workflows = self._workflows()
        self._cron()
        self._schemas()
        self._clients()
        self._operators(large)
        Worker.objects.filter(pk__in=[worker.pk for worker in self.live]).update(
            last_heartbeat_at=timezone.now()
        )
        self._now()
        self._alerts()
        self._webhooks()
        return large

    # Rows that clients and workers would have made

    def _moment(self, ago: timedelta) -> datetime:
        return self.now - ago

    def _id(self, moment: datetime) -> UUID:
        """An id of that moment, as the server gives them."""
        noise = self.dice.getrandbits(74)
        at = first_id(moment).int
        return UUID(int=at | (noise >> 62) << 64 | (noise & ((1 << 62) - 1)))

    def _fleet(self, count: int) -> None:
        dice, made = self.dice, []
        for number in range(count):
            share = number / count
            condition = (
                "dead" if share < 0.18 else "left" if share < 0.24 else
                "silent" if share < 0.26 else "quiet" if share < 0.3 else "running"
            )  # fmt: skip
            version = VERSIONS[0 if share > 0.55 else dice.randrange(1, 4)]
            started = self._moment(timedelta(minutes=dice.randrange(30, 2000)))
            worker = Worker(
                worker_id=f"worker-{number:04}",
                hostname=f"host-{number % 40 + 1:02}",
                pid=4000 + number,
                queues=sorted({QUEUES[number % 19], QUEUES[number // 7 % 19]}),
                concurrency=dice.choice(CONCURRENCIES),
                labels=[LABELS[number % 2], ZONES[number % 3]],
                protocol=dice.choice(PROTOCOLS),
                version=version,
                started_at=started,
                registered_at=started,
                last_heartbeat_at=self.now,
                # No heartbeats come while the pages are open.
                heartbeat_timeout=timedelta(hours=2),
                jobs_done=dice.randrange(200, 9000),
                jobs_failed=dice.randrange(0, 90),
            )
            if version in RELEASES:
                worker.labels.append(RELEASES[version])
            if condition in ("dead", "left"):
                gone = self._moment(timedelta(minutes=dice.randrange(3, 900)))
                worker.state, worker.last_heartbeat_at = WorkerState.TERMINATED, gone
                moment = "died_at" if condition == "dead" else "left_at"
                setattr(worker, moment, gone + 2 * MINUTE)
            elif condition == "silent":
                worker.last_heartbeat_at = self._moment(timedelta(minutes=4))
                worker.heartbeat_timeout = MINUTE
            else:
                self.live.append(worker)
                if condition == "quiet":
                    worker.state = worker.directive = WorkerState.QUIET
            made.append(worker)
        Worker.objects.bulk_create(made, batch_size=500)

    def _job(self, created: datetime, **columns: Any) -> Job:
        about = {"order": self.dice.randrange(10_000, 99_999), "shop": self.dice.randrange(1, 40)}
        columns = {"created_at": created, "enqueued_at": created, "args": [about]} | columns
        return Job(id=self._id(created), **columns)

    def _done(self, kind: str, finished: datetime, **columns: Any) -> Job:
        dice = self.dice
        slow = 45 if kind == SLOWEST else 1 + TYPES.index(kind) % 7
        run = timedelta(seconds=slow * dice.lognormvariate(-1, 0.6))
        wait = timedelta(seconds=dice.lognormvariate(0.2, 0.9))
        started = finished - run
        return self._job(
            started - wait,
            type=kind,
            queue=_queue_of(kind),
            attempt=1,
            started_at=started,
            finished_at=finished,
            finished_by=dice.choice(self.live).pk,
            **columns,
        )

    def _finished(self, count: int) -> None:
        """Jobs of a day, more of them by day than by night, and some failed attempts."""
        dice, made = self.dice, []
        weights = [1 / (1 + place % 18) for place in range(len(TYPES))]
        for kind in [*dice.choices(TYPES, weights, k=count - 2 * len(TYPES)), *TYPES, *TYPES]:
            job = self._done(kind, self._moment(self._some_time()), state=State.COMPLETED)
            made.append(job)
            if dice.random() < (0.3 if kind.startswith("stock.") else 0.03):
                job.attempt = 2
                self._fail(job, dice.choice(ERRORS), job.started_at)
        for minutes in range(5, 50, 6):
            ago = timedelta(minutes=minutes)
            made.append(self._done(SLOWEST, self._moment(ago), state=State.COMPLETED))
        Job.objects.bulk_create(made, batch_size=500)

    def _some_time(self) -> timedelta:
        """How long ago: rejection sampling of a wave over the day."""
        while True:
            ago = self.dice.random()
            if self.dice.random() < 0.55 + 0.4 * math.cos(ago * 2 * math.pi):
                return ago * DAY

    def _fail(self, job: Job, error: str, moment: datetime | None, attempt: int = 1) -> None:
        self.errors.append(
            JobError(
                job=job,
                attempt=attempt,
                type=error,
                message=f"{error.replace('_', ' ')}: {_message(error)}",
                worker_id=job.finished_by,
                occurred_at=moment,
                backtrace=["shop/tasks.py, line 41, in run", "shop/net.py, line 12, in connect"],
            )
        )

    def _dead_letter(self) -> None:
        """All kinds of errors over weeks, and one kind that began within the last hour."""
        dice, made = self.dice, []
        often = [1 / (1 + place) for place in range(len(ERRORS))]
        kinds = [*ERRORS, *dice.choices(ERRORS, often, k=460)]
        for error in [kind for kind in kinds if kind != NOW_FAILING]:
            ago = timedelta(hours=2) + dice.random() ** 3 * timedelta(days=20)
            made.append(self._dead(dice.choice(TYPES), error, ago))
        for _ in range(NOW_FAILING_COUNT):
            made.append(
                self._dead("email.send", NOW_FAILING, dice.random() * timedelta(minutes=50))
            )
        Job.objects.bulk_create(made, batch_size=500)

    def _dead(self, kind: str, error: str, ago: timedelta) -> Job:
        finished = self._moment(ago)
        job = self._done(kind, finished, state=State.DISCARDED, dead_letter=True)
        job.attempt = 3
        job.enqueued_at = job.created_at = job.created_at - timedelta(minutes=6)
        for attempt in (1, 2, 3):
            self._fail(job, error, finished - (3 - attempt) * timedelta(minutes=2), attempt)
        return job

    def _waiting(self, count: int) -> None:
        dice, made = self.dice, []
        for number in range(count):
            kind = dice.choice(TYPES)
            queue = ("partners", "legacy", "ml")[number % 3] if number < 60 else _queue_of(kind)
            job = self._job(
                self._moment(dice.random() ** 2 * timedelta(minutes=9)), type=kind, queue=queue
            )
            share = number / count
            if share > 0.9:
                job.state, job.scheduled_at = State.SCHEDULED, self.now + dice.random() * DAY
            elif share > 0.86:
                job.state, job.attempt = State.RETRYABLE, 1
                job.scheduled_at = self.now + dice.random() * timedelta(hours=1)
                self._fail(job, dice.choice(ERRORS), self._moment(dice.random() * 5 * MINUTE))
            made.append(job)
        Job.objects.bulk_create(made, batch_size=500)

    def _running(self) -> Job:
        dice, made = self.dice, []
        for worker in self.live:
            free = worker.concurrency or 1
            for _ in range(min(int(free * dice.betavariate(2, 2)), 6)):
                started = self._moment(timedelta(seconds=dice.randrange(1, 300)))
                kind = dice.choice(TYPES)
                made.append(
                    self._job(
                        started - timedelta(seconds=2),
                        type=kind,
                        queue=worker.queues[0],
                        state=State.ACTIVE,
                        attempt=1,
                        started_at=started,
                        reserved_by=worker.pk,
                        reserved_for=timedelta(hours=2),
                        reserved_until=self.now + timedelta(hours=2),
                    )
                )
        Job.objects.bulk_create(made, batch_size=500)
        return made[0]

    # What the server derives

    def _day(self) -> None:
        """Take the samples of a day, as the reaper does, but of fewer minutes.

        Only where the clock that decides is this process's: on PostgreSQL there is today's alone.
        """
        if connection.vendor == "postgresql":
            return
        available = Job.objects.filter(state=State.AVAILABLE)
        ids = list(available.order_by("pk").values_list("pk", flat=True))
        quiet = [worker.pk for worker in self.live if "shop-4.1" in worker.labels]
        for ago in self._times():
            # How full the queues were: some of the waiting jobs are left out of the sample.
            hours = ago / timedelta(hours=1)
            share = 0.45 + 0.4 * math.cos(hours / 3.8) * math.exp(-hours / 30)
            available.filter(pk__lt=ids[int(len(ids) * share)]).update(state=State.PENDING)
            is_deploying = timedelta(hours=7) < ago < timedelta(hours=8)
            if is_deploying:
                Worker.objects.filter(pk__in=quiet).update(state=WorkerState.QUIET)
            with clocks.ahead(-ago):
                rollup.sample()
                samples.sample()
            Job.objects.filter(state=State.PENDING).update(state=State.AVAILABLE)
            if is_deploying:
                Worker.objects.filter(pk__in=quiet).update(state=WorkerState.RUNNING)

    def _times(self) -> Iterator[timedelta]:
        hours = DAY - timedelta(hours=1)
        yield from (DAY - number * self.sampled for number in range(int(hours / self.sampled)))
        yield from (MINUTE * number for number in range(60, 0, -2))

    def _roll_up(self) -> None:
        # In one piece each: nobody else needs the processor.
        with patch.object(parts, "PIECES", 1):
            while rollup.step():
                pass

    def _now(self) -> None:
        rollup.sample()
        samples.sample()

    def _limits(self) -> None:
        rate = {"rate_limit": {"rate": {"limit": 600, "period": "PT1M"}}}
        engine.queues.configure("webhooks", rate, create=False)
        Queue.objects.filter(pk="video").update(concurrency=600)
        Queue.objects.filter(pk="bulk").update(concurrency=400)

    def _workflows(self) -> list[Workflow]:
        made = []
        for number in range(5):
            workflow = engine.create_workflow(plan_of(_etl(number), self.now))
            made.append(workflow)
            for _ in range(number):
                held = engine.claim(["eu-only"], count=10)
                engine.complete([engine.Completion(job.id) for job in held])
        return made

    def _cron(self) -> None:
        for name, expression, kind in (
            ("daily-report", "0 9 * * *", "report.daily"),
            ("weekly-report", "0 8 * * MON", "report.weekly"),
            ("reindex", "*/15 * * * *", "search.reindex"),
            ("forecast", "30 2 * * *", "stock.forecast"),
            ("dunning", "0 7 * * MON-FRI", "billing.dunning"),
            ("payouts", "0 6 1,15 * *", "billing.payout"),
            ("digest", "0 18 * * *", "email.digest"),
            ("erase-users", "15 3 * * *", "user.erase"),
            ("prune-search", "@every 90m", "search.prune"),
            ("snapshot", "@hourly", "search.snapshot"),
        ):
            template = {"type": kind, "args": [{"all": True}], "options": {"queue": "nightly"}}
            new = engine.NewCronJob(name, expression, template, timezone="Europe/Berlin")
            engine.upsert_cron(new)
        for name in ("daily-report", "reindex", "reindex"):
            engine.run_cron_now(name)
        engine.set_cron_enabled("payouts", enabled=False)

    def _schemas(self) -> None:
        members = {
            "to": {"type": "string", "description": "The address of the customer"},
            "template": {"enum": ["plain", "html"]},
            "order": {"type": "integer"},
        }
        first = {"type": "object", "required": ["to"], "properties": members}
        schema = {"type": "array", "prefixItems": [first]}
        JobSchema.objects.create(type="email.send", version="2.0", version_number=2, schema=schema)
        limits = {"max_queue_depth": 50_000, "max_enqueue_rate": {"limit": 900, "period": "PT1M"}}
        Tenant.objects.create(name="acme", fairness_weight=5, **limits)
        engine.bulk_operations.start("retry", {"queue": "mail"}, actor=self._actor())
        Pool.objects.create(name="night", queues=["reports", "mail"], weights={"mail": 3})

    def _clients(self) -> None:
        engine.register_specs({kind: f"v{place % 5 + 1}" for place, kind in enumerate(TYPES)})
        for name, scopes in (("ci", ["produce"]), ("shop", ["produce"]), ("fleet", ["work"])):
            make_key(name, scopes=scopes)
        for number, worker in enumerate(self.live[:12]):
            RefusedFinish.objects.create(
                job_id=self._id(self.now),
                operation="ack",
                worker_id=worker.pk,
                state="active",
                refused_at=self._moment(number * 7 * MINUTE),
            )

    # What operators do

    def _alerts(self) -> None:
        """Marks, and rules with the alerts that they raise by themselves."""
        with clocks.ahead(-5 * timedelta(hours=1)):
            marks.add(self._actor(), "deployment", "shop/4.2")
        for name, kind in (
            ("Workers died", "dead_workers"),
            ("Queue paused", "paused_queues"),
            ("Dead letter", "growing_dead_letter"),
        ):
            AlertRule.objects.create(name=name, kind=kind, emails="ops@example.com")
        evaluation.evaluate()

    def _webhooks(self) -> None:
        """A subscription, and what is sent to it."""
        made = subscriptions.create(
            self._actor(), {"url": "https://10.20.0.5/", "events": ["job.*"]}
        )
        WebhookSubscription.objects.filter(pk=made.pk).update(begins_after=0)
        fan_out.fan_out(batches=1)

    def _operators(self, large: Large) -> None:
        """A day of them; the latest are what is in force now."""
        dice = self.dice
        verbs = (
            ("retry_job", "job", "The partner is back"),
            ("discard_job", "job", "Test orders"),
            ("pause_queue", "queue", "Their database is full"),
            ("resume_queue", "queue", "There is room again"),
            ("change_cron", "cronjob", "An hour later in winter"),
            ("run_job", "job", "The customer waits"),
        )
        for hours in range(23, 1, -1):
            verb, kind, why = dice.choice(verbs)
            with clocks.ahead(-timedelta(hours=hours, minutes=dice.randrange(60))):
                selection = {"filter": {"queue": dice.choice(QUEUES)}}
                count = 1 if kind != "job" else dice.randrange(2, 300)
                record_action(
                    self._actor(), verb, kind=kind, count=count, selection=selection, reason=why
                )
        with clocks.ahead(-40 * MINUTE):
            engine.pause(
                large.paused_queue, paused_by="ben", reason="The partner's address is down"
            )
            record_action(
                self._actor("ben"),
                "pause_queue",
                [Queue(pk=large.paused_queue)],
                reason="The partner's address is down",
            )
        named = [worker for worker in self.live if worker.state == WorkerState.RUNNING]
        large.terminated = named[0].pk
        with clocks.ahead(-12 * MINUTE):
            chosen = Worker.objects.filter(pk__in=[worker.pk for worker in named[:3]])
            who = self._actor(large.terminated_by)
            orders.order(chosen, WorkerState.TERMINATE, actor=who, reason="Leaks memory")
        old = [worker.pk for worker in named[3:] if worker.version == "shop/3.9.0"]
        drain.start(
            old[:24],
            actor=self._actor("ann"),
            max_unavailable="6",
            floor="default=50%",
            reason="Release 4.2.1",
            selection={"filter": {"version": "shop/3.9.0"}},
        )
        reaper.sweep(["fleet-operations"])
        # Some of them have become idle and left.
        for worker in Worker.objects.filter(pk__in=old[:24], directive=WorkerState.QUIET)[:4]:
            held = Job.objects.filter(reserved_by=worker.pk).values_list("pk", flat=True)
            engine.complete([engine.Completion(pk, worker_id=worker.pk) for pk in held])
            Worker.objects.filter(pk=worker.pk).update(state=WorkerState.QUIET)
        reaper.sweep(["fleet-operations"])
        for worker in Worker.objects.filter(directive=WorkerState.TERMINATE, pk__in=old[:24]):
            protocol.deregister(worker.pk)
        reaper.sweep(["fleet-operations"])

    def _actor(self, name: str = "") -> Actor:
        actor = Actor(name or self.dice.choice(OPERATORS), Source.ADMIN, "192.0.2.7")
        return actor if name else replace(actor, source=self.dice.choice([*Source][:3]))


NOW_FAILING_COUNT = 37


def _queue_of(kind: str) -> str:
    return kind.partition(".")[0]


def _message(error: str) -> str:
    how = error.rpartition("_")[2]
    return {
        "timeout": "no answer within 10 s.",
        "refused": "the connection was refused.",
        "down": "the server did not answer.",
        "invalid": "the answer could not be read.",
        "quota": "the limit of the day is reached.",
    }[how]


def _etl(number: int) -> dict[str, Any]:
    def job(kind: str) -> dict[str, Any]:
        return {"type": kind, "args": [], "options": {"queue": "eu-only"}}

    parts = [job("image.resize"), job("image.crop"), job("image.watermark")]
    steps = [job("user.import"), {"type": "group", "jobs": parts}, job("report.build")]
    return {"type": "chain", "name": f"catalogue-{number + 1}", "steps": steps}
