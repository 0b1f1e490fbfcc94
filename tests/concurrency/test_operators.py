"""Two operators and the reaper act on the same objects at once: the results are consistent."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.access.audit import Actor
from jobs.errors import Conflict
from jobs.models import Event, Job, OperatorAction, Queue, Source
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, QueueFactory, WorkerFactory, many_jobs
from tests.operators import choose, forms
from tests.workers.sampler import sampling
from workers import protocol
from workers.fleet import drain, rolling
from workers.fleet import orders as fleet
from workers.lifecycle import WorkerState
from workers.models import UNFINISHED, Answer, Directive, FleetOperation, OperationStep, Worker

from .threads import in_step, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ONE, OTHER = Actor("one", Source.SHELL), Actor("other", Source.SHELL)
NAMES = [f"w{number}" for number in range(6)]


def a_fleet(names: list[str] = NAMES, **fields: Any) -> None:
    for name in names:
        WorkerFactory(worker_id=name, concurrency=1, **fields)


def give(directive: WorkerState, actor: Actor = ONE) -> list[str]:
    return fleet.order(Worker.objects.filter(pk__in=NAMES), directive, actor=actor).heard


def assert_histories_agree() -> None:
    """Each worker's directive is the last one in its history, and it waits for one order."""
    for worker in Worker.objects.all():
        orders = Directive.objects.filter(worker_id=worker.pk).order_by("id")
        assert orders.filter(answer=Answer.WAITING).count() <= 1
        last = orders.last()
        if last is not None:
            asked = worker.directive or "running"
            assert asked == last.state, (worker, list(orders.values_list("state", "answer")))


def test_of_two_drains_of_the_same_workers_one_begins():
    def begin(actor: Actor, names: list[str]) -> bool:
        try:
            drain.start(names, actor=actor)
        except Conflict:
            return False
        return True

    for round_ in range(6):
        names = [f"{round_}-{name}" for name in NAMES]
        a_fleet(names)
        # They overlap, and no worker belongs to both.
        begun = together(lambda ns=names: begin(ONE, ns[:4]), lambda ns=names: begin(OTHER, ns[2:]))
        assert sorted(begun) == [False, True]

    steps = OperationStep.objects.filter(is_open=True).values_list("worker_id", flat=True)
    assert len(steps) == len(set(steps)) == 6 * 4
    assert FleetOperation.objects.count() == OperatorAction.objects.count() == 6


def test_two_drains_that_two_reapers_drive_keep_one_floor():
    halves = NAMES[:3], NAMES[3:]

    def begin_and_drive(names: list[str]) -> None:
        drain.start(names, actor=ONE, max_unavailable="100%", floor="3")
        rolling.drive()

    for _ in range(8):
        FleetOperation.objects.all().delete()
        Worker.objects.all().delete()
        a_fleet()
        with sampling() as sampler:
            together(*[lambda names=half: begin_and_drive(names) for half in halves])
            rolling.drive()
            assert min(sampler.capacities) == 3


def test_quiet_against_resume_leaves_each_worker_and_its_history_of_one_mind():
    a_fleet()

    for _ in range(5):
        in_step(
            4,
            lambda _: give(WorkerState.QUIET, ONE),
            lambda _: give(WorkerState.RUNNING, OTHER),
        )
        assert_histories_agree()

    assert Directive.objects.count() > 2 * len(NAMES), "both were heard"


def test_terminate_against_a_drain_is_never_taken_back():
    for round_ in range(4):
        Worker.objects.all().delete()
        Directive.objects.all().delete()
        a_fleet()
        operation = drain.start(NAMES, actor=ONE, max_unavailable="3")

        together(rolling.drive, lambda: give(WorkerState.TERMINATE, OTHER), rolling.drive)

        assert set(Worker.objects.values_list("directive", flat=True)) == {"terminate"}, round_
        assert_histories_agree()
        Worker.objects.update(state="terminated")
        rolling.drive()
        operation.refresh_from_db()
        assert operation.state == "completed"


def test_an_abort_at_any_moment_leaves_no_worker_quiet():
    for _ in range(6):
        Worker.objects.all().delete()
        a_fleet()
        operation = drain.start(NAMES, actor=ONE, max_unavailable="2")
        rolling.drive()

        together(rolling.drive, lambda pk=operation.pk: drain.abort(pk, actor=OTHER), rolling.drive)

        # None of them had reported that it is idle, so none was terminated.
        assert not Worker.objects.exclude(directive__in=("", "running")).exists()
        assert not OperationStep.objects.filter(is_open=True).exists()
    assert not FleetOperation.objects.filter(state__in=UNFINISHED).exists()


def test_no_fetch_that_begins_after_a_quiet_is_given_a_job():
    for name in NAMES[:3]:
        WorkerFactory(worker_id=name, concurrency=None)
        many_jobs(40)
        ordered = threading.Event()

        def fetch(name: str = name, ordered: Any = ordered) -> list[tuple[bool, int]]:
            seen = []
            while sum(after for after, _ in seen) < 3:
                after = ordered.is_set()
                seen.append((after, len(protocol.fetch(["default"], worker_id=name, count=1))))
            return seen

        def quiet(name: str = name, ordered: Any = ordered) -> None:
            fleet.order(Worker.objects.filter(pk=name), WorkerState.QUIET, actor=ONE)
            ordered.set()

        seen = [pair for pairs in together(fetch, fetch, quiet)[:2] for pair in pairs]

        assert {given for after, given in seen if after} == {0}
        assert Job.objects.active().filter(reserved_by=name).count() == sum(n for _, n in seen)


# Through the admin: both see the question first, then both confirm at once


def operators(count: int = 2) -> list[Client]:
    clients = []
    for number in range(count):
        client = Client()
        client.force_login(User.objects.create_superuser(f"ops-{number}"))
        clients.append(client)
    return clients


def both_say_yes(model: str, action: str, chosen: list[Any], **fields: str) -> list[Any]:
    clients = operators()
    questions = [choose(client, model, action, *chosen) for client in clients]

    def say_yes(client: Client, page: Any) -> Any:
        form = next(form for form in forms(page) if "confirmed" in form.fields)
        return client.post(page.request["PATH_INFO"], form.fields | fields)

    pairs = zip(clients, questions, strict=True)
    replies = together(*[lambda pair=pair: say_yes(*pair) for pair in pairs])
    assert [reply.status_code for reply in replies] == [302, 302]
    return replies


def counted(verb: str) -> list[int]:
    return list(OperatorAction.objects.filter(verb=verb).values_list("count", flat=True))


def test_two_bulk_retries_of_the_same_dead_letter_retry_each_job_once():
    many_jobs(300, dead=True)

    both_say_yes("ojs_jobs_deadjob", "retry", list(Job.objects.all()))

    assert Job.objects.filter(state=State.AVAILABLE, attempt=0).count() == 300
    assert Event.objects.filter(type="job.enqueued").count() == 300
    assert sum(counted("retry_job")) == 300


def test_a_bulk_retry_against_a_bulk_discard_gives_each_job_one_fate():
    jobs = many_jobs(300, dead=True)
    retrier, discarder = operators()
    rows = list(Job.objects.all())
    questions = [
        (client, choose(client, "ojs_jobs_deadjob", action, *rows))
        for client, action in ((retrier, "retry"), (discarder, "discard"))
    ]

    def say_yes(client: Client, page: Any) -> int:
        form = next(form for form in forms(page) if "confirmed" in form.fields)
        return int(client.post(page.request["PATH_INFO"], form.fields).status_code)

    together(*[lambda pair=pair: say_yes(*pair) for pair in questions])

    retried, deleted = sum(counted("retry_job")), sum(counted("discard_job"))
    assert retried + deleted == len(jobs)
    assert Job.objects.filter(state=State.AVAILABLE).count() == Job.objects.count() == retried


def test_two_purges_of_a_queue_delete_each_job_once_and_spare_what_is_active():
    queue = QueueFactory(name="mail")
    many_jobs(300, queue="mail")
    JobFactory(active=True, queue="mail")

    both_say_yes("ojs_jobs_queue", "purge", [queue], typed="mail")

    assert [str(job.state) for job in Job.objects.all()] == ["active"]
    rows = OperatorAction.objects.filter(verb="purge_queue")
    assert [row.count for row in rows] == [1, 1]
    assert sum(row.selection["deleted"] for row in rows) == 300
    assert Queue.objects.filter(pk="mail").exists()
