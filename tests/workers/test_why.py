"""Why is it not running? The admin names each condition that a fetch applies."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
from django.urls import reverse

from jobs import engine
from jobs.admin.why import why
from jobs.engine import limited_claim, maintenance, pool_rules, tenants
from jobs.models import Job, Maintenance, Pool, Queue, RateLimit, Tenant
from jobs.spec import queue_config
from jobs.spec.versions import read_versions
from jobs.store.sql import read
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago, ahead, many_jobs
from tests.operators import staff
from workers.admin import why as fleet
from workers.fetching.gate import GATE
from workers.fleet.condition import is_given_jobs
from workers.lifecycle import WorkerState
from workers.models import Worker

pytestmark = pytest.mark.django_db

CLEAR = "Nothing known is in its way: it waits for a worker of its queue to fetch."


@pytest.fixture
def worker() -> Worker:
    return WorkerFactory(worker_id="w1", queues=["mail"], concurrency=1)


def change(**columns: Any) -> Callable[..., None]:
    return lambda *_: Worker.objects.update(**columns)


def change_job(**columns: Any) -> Callable[..., None]:
    return lambda *_: Job.objects.update(**columns)


def change_queue(**columns: Any) -> Callable[..., None]:
    return lambda *_: Queue.objects.update(**columns)


def require_version(api: Any) -> None:
    Job.objects.update(version_number=read_versions("2.0").least)
    Worker.objects.update(job_versions={"email.send": list(read_versions("1.0"))})


def busy(api: Any) -> None:
    JobFactory(active=True, queue="other", reserved_by="w1")


def free(api: Any) -> None:
    Job.objects.filter(queue="other").delete()


def limit_tenant(api: Any) -> None:
    JobFactory(active=True, queue="other", project="acme")
    Job.objects.filter(queue="mail").update(project="acme")
    engine.tenants.configure("acme", {"max_concurrency": 1})


def pool(**columns: Any) -> dict[str, Any]:
    return {
        **{"queues": ["mail"], "strategy": "strict", "weights": {}, "concurrency": None},
        **{"is_isolated": False, "starvation_prevention": {}},
        **columns,
    }


def fill_pool(api: Any) -> None:
    Worker.objects.update(labels=["pool:video"], concurrency=None)
    JobFactory(queue="other")
    engine.pools.configure("video", pool(concurrency=1))
    assert api.fetch("other", worker_id="w1")


def limit_key(api: Any) -> None:
    Job.objects.filter(queue="mail").delete()
    limited = {"rate_limit": {"key": "smtp", "concurrency": 1}}
    api.pushed(queue="other", options=limited)
    assert api.fetch("other", worker_id="w2")
    api.pushed(type="email.send", options={"queue": "mail"} | limited)


class Condition(NamedTuple):
    """What keeps jobs from a worker: how it comes, how it goes, and what is said of it."""

    columns: str
    """By which the statements of a fetch know it."""
    text: str
    block: Callable[[Any], Any]
    lift: Callable[[Any], Any] = lambda api: None


CONDITIONS = (
    Condition(
        "state directive",
        "is given jobs: an operator has told them to be quiet or to terminate.",
        change(directive="quiet"),
        change(directive="", state="running"),
    ),
    Condition(
        "state directive",
        "is given jobs: an operator has told them to be quiet or to terminate.",
        change(directive="terminate"),
        change(directive=""),
    ),
    Condition(
        "state", "is running: they are quiet", change(state="quiet"), change(state="running")
    ),
    Condition("concurrency", "The only worker that takes it from “mail” is busy.", busy, free),
    Condition(
        "labels capabilities needs",
        "cannot do what it needs: gpu, eu.",
        change_job(needs=["gpu", "eu"]),
        change(capabilities=["gpu"], labels=["eu"]),
    ),
    Condition(
        "job_versions version_number",
        "does not take version 2.0 of “email.send”.",
        require_version,
        change(job_versions=None),
    ),
    Condition("state", "It is pending", change_job(state="pending"), change_job(state="available")),
    Condition(
        "state scheduled_at",
        "It is scheduled for",
        lambda api: Job.objects.update(state="scheduled", scheduled_at=ahead(60)),
        lambda api: Job.objects.update(scheduled_at=ago(1)),
    ),
    Condition(
        "expires_at",
        "It expired",
        lambda api: Job.objects.update(expires_at=ago(1)),
        change_job(expires_at=None),
    ),
    Condition(
        "paused_at paused_until",
        "The queue “mail” is paused",
        lambda api: Queue.objects.update(paused_at=ago(9), paused_until=ahead(60)),
        lambda api: Queue.objects.update(paused_until=ago(1)),
    ),
    Condition(
        "isolated_by",
        "The worker pool “video” isolates “mail”, and no running worker of the queue belongs",
        lambda api: engine.pools.configure("video", pool(is_isolated=True)),
        change(labels=["pool:video"]),
    ),
    Condition(
        "until",
        "Maintenance mode is on",
        lambda api: Maintenance.objects.create(since=ago(9), until=ahead(60)),
        lambda api: Maintenance.objects.update(until=ago(1)),
    ),
    Condition(
        "concurrency has_limits",
        "The queue's limit is 0",
        change_queue(concurrency=0),
        change_queue(concurrency=1),
    ),
    Condition(
        "config has_limits starts next_at policy closed_until",
        "The rate limit of the queue “mail” is 0: no job starts.",
        lambda api: engine.queues.configure(
            "mail", queue_config.parse({"rate_limit": {"limit": 0, "period": "PT1H"}})
        ),
        lambda api: engine.queues.configure(
            "mail", queue_config.parse({"rate_limit": {"limit": 9, "period": "PT1H"}})
        ),
    ),
    Condition(
        "rate_key policy override held_until closed_until",
        "Its rate limit “smtp” is reached: 1 of 1 jobs are active.",
        limit_key,
        free,
    ),
    Condition(
        "max_concurrency has_tenants project",
        "The limit of the tenant “acme” is reached: 1 of 1 jobs are active.",
        limit_tenant,
        free,
    ),
    Condition(
        "concurrency has_rules",
        "The limit of the worker pool “video” is reached: 1 of 1 jobs are active.",
        fill_pool,
        free,
    ),
)
ORDER = {"priority", "enqueued_at", "starvation_prevention", "strategy", "dispatches"}
"""What only decides which job comes first: `behind_others` says so."""
WANTED = {"queue", "queues", "type", "worker_id", "id", "name", "key"}
"""What the fetch asks for; `test_what_a_worker_asks_for` has it."""
NOTES = {"attempt", "exceeded_at", "full_since", "updated_at"}
"""What a fetch writes down."""


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda each: f"{each.columns}-{each.text}")
def test_what_keeps_a_job_from_a_fetch_is_named(api, worker, condition):
    QueueFactory(name="mail")
    QueueFactory(name="other")
    JobFactory(queue="mail")
    condition.block(api)
    job = Job.objects.get(queue="mail")

    assert api.fetch("mail", worker_id="w1") == []
    (text,) = why(job)
    assert condition.text in text

    condition.lift(api)
    assert [each["id"] for each in api.fetch("mail", worker_id="w1")] == [str(job.pk)]


def columns(*models: Any) -> set[str]:
    return {field.attname for model in models for field in model._meta.concrete_fields}


def words(sql: str) -> set[str]:
    return set(re.findall(r"\w+", re.sub(r"--.*", "", sql)))


def named_in(*sources: Any) -> set[str]:
    """The attributes and the keywords that are used there."""
    found = set()
    for source in sources:
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(source)))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg.partition("__")[0])
    return found


def test_a_fetch_has_no_other_conditions():
    """A column that a fetch newly looks at needs a reason, and its condition above."""
    chosen = read("jobs.store.postgres", "claim").partition("next AS")[0]
    limits = limited_claim, pool_rules, tenants.most_active
    used = words(chosen) & columns(Job, Queue, Maintenance)
    used |= words(read("workers.store.postgres", "gate")) & columns(Worker)
    used |= named_in(*limits) & columns(Tenant, Pool, Queue, RateLimit)
    known = {column for each in CONDITIONS for column in each.columns.split()}

    assert used - known - ORDER - WANTED - NOTES == set()


def test_what_a_worker_asks_for(api, worker):
    job = JobFactory(queue="mail")

    assert why(job) == [CLEAR]
    Worker.objects.update(job_types=["video.cut"])
    assert why(job) == ["The only running worker of “mail” does not take “email.send”."]
    Worker.objects.update(queues=["video"])
    assert why(job) == ["No live worker serves the queue “mail”."]


def test_the_gate_and_the_admin_have_one_rule():
    for number, (state, directive) in enumerate(product(WorkerState, ["", *WorkerState])):
        WorkerFactory(worker_id=f"w{number}", state=state, directive=directive)
    given = set(Worker.objects.given_jobs())

    for each in Worker.objects.annotate(is_given_jobs=is_given_jobs()):
        room = GATE.admit(each.pk).room
        claimed = engine.claim(["default"], worker_id=each.pk, gate=GATE)
        assert claimed == []
        JobFactory(queue="default")
        claimed = engine.claim(["default"], worker_id=each.pk, gate=GATE)
        Job.objects.all().delete()
        is_live = each.state != WorkerState.TERMINATED
        assert bool(room) == each.may_fetch == bool(claimed)
        assert each.is_given_jobs == (each in given) == (each.may_fetch and is_live)


def test_a_silent_worker_is_not_given_jobs():
    WorkerFactory(queues=["mail"], silent=True)

    assert list(Worker.objects.given_jobs()) == []
    (text,) = why(JobFactory(queue="mail"))
    assert text.startswith("No worker that serves “mail” is running: they are quiet")


def test_an_order_and_silence_are_both_named():
    WorkerFactory(queues=["mail"], silent=True)
    WorkerFactory(queues=["mail"], directive="quiet")

    (text,) = why(JobFactory(queue="mail"))

    assert text.endswith("to terminate, or they are quiet, terminating or silent.")


def test_several_workers_are_counted():
    for _ in range(2):
        WorkerFactory(queues=["mail"], concurrency=0, job_types=["email.send"])

    assert why(JobFactory(queue="mail")) == ["All 2 workers that take it from “mail” are busy."]
    assert why(JobFactory(queue="mail", type="t", priority=9)) == [
        "None of the 2 running workers of “mail” takes “t”."
    ]


def test_a_worker_beside_a_full_pool_is_named_if_it_is_busy(api, worker):
    QueueFactory(name="mail")
    fill_pool(api)
    other = WorkerFactory(queues=["mail"], concurrency=1)
    job = JobFactory(queue="mail")

    assert why(job)[0].startswith("Nothing is in its way")
    JobFactory(active=True, reserved_by=other.pk)
    assert why(job) == [
        "The limit of the worker pool “video” is reached: 1 of 1 jobs are active.",
        "The other worker that takes it from “mail” is busy.",
    ]


def test_workers_of_other_projects_are_told_from_none():
    job = JobFactory(queue="mail", project="acme")

    assert why(job) == ["No live worker serves the queue “mail”."]
    WorkerFactory(queues=["mail"], project="beta")
    assert why(job) == [
        "No live worker serves the queue “mail” for the project “acme”: those that serve it are "
        "for other projects."
    ]
    assert why(JobFactory(queue="mail", priority=1)) == [
        "No live worker serves the queue “mail” for jobs without a project: those that serve it "
        "are for projects."
    ]


@pytest.mark.parametrize("is_held", [True, False])
def test_a_worker_that_fetches_is_told_from_one_that_only_lives(api, worker, is_held, settings):
    settings.OJS = {**settings.OJS, "RECORD_EVENTS": not is_held}
    Worker.objects.update(concurrency=2)
    waiting = JobFactory(queue="mail", created_at=ahead(60))
    assert why(waiting) == [CLEAR]

    JobFactory(queue="mail")
    (fetched,) = api.fetch("mail", worker_id="w1")
    if not is_held:
        api.ack(fetched["id"])

    (text,) = why(waiting)
    assert text.startswith("Nothing is in its way: the next fetch takes it. A worker of its queue")


# On the page of a queue


def page_of(client, name="mail"):
    return client.get(reverse("admin:ojs_jobs_queue_change", args=[name]))


def test_the_page_of_a_queue_explains_its_next_job(admin_client, worker):
    QueueFactory(name="mail", concurrency=0)
    JobFactory(queue="mail", created_at=ago(9))
    first = JobFactory(queue="mail", priority=5, rate_key="smtp")
    JobFactory(queue="mail", priority=9, expires_at=ago(1))
    Worker.objects.update(directive="quiet")

    page = page_of(admin_client)
    text = page.content.decode()

    assert [reason for reason, *_ in page.context["reasons"]] == [
        "The queue's limit is 0: none of its jobs starts.",
        "1 job of its queue comes before it.",
        "No worker that serves “mail” is given jobs: an operator has told them to be quiet or to "
        "terminate.",
    ]
    assert reverse("admin:ojs_jobs_job_change", args=[first.pk]) in text
    assert "/admin/ojs_workers/worker/?queue=mail" in text
    assert "its limit is 0: nothing is fetched" in text


def test_a_queue_in_which_nothing_waits_explains_nothing(admin_client):
    QueueFactory(name="mail")
    JobFactory(queue="mail", scheduled=True)

    assert "Why is the next job not running?" not in page_of(admin_client).content.decode()


@pytest.mark.usefixtures("django_user_model")
def test_reasons_take_the_permission_to_view_jobs_and_links_that_of_their_pages(worker):
    QueueFactory(name="mail")
    JobFactory(queue="mail", type="secret.type")
    Worker.objects.update(job_types=["t"])

    assert "secret.type" not in page_of(staff("view_queue", username="a")).content.decode()
    text = page_of(staff("view_queue", "view_job", username="b")).content.decode()
    assert "does not take “secret.type”" in text
    assert "/admin/ojs_workers/worker/" not in text


def test_a_paused_queue_is_resumed_where_the_reason_stands(admin_client, worker):
    QueueFactory(name="mail", paused=True)
    JobFactory(queue="mail")

    page = page_of(admin_client)

    ((_, url, resumes),) = page.context["reasons"]
    assert resumes.pk == "mail" and not url


def test_its_page_takes_few_queries_however_much_is_in_the_way(
    api, admin_client, worker, django_assert_max_num_queries
):
    QueueFactory(name="mail")
    fill_pool(api)
    engine.queues.configure("mail", queue_config.parse({"concurrency": 9}))
    engine.tenants.configure("acme", {"max_concurrency": 1})
    many_jobs(600, queue="mail", project="acme", rate_key="smtp")
    RateLimit.objects.create(key="smtp", policy={"concurrency": 9})
    admin_client.get(reverse("admin:index"))

    with django_assert_max_num_queries(18):
        page = page_of(admin_client)

    assert [text for text, *_ in page.context["reasons"]] == [
        "The limit of the worker pool “video” is reached: 1 of 1 jobs are active."
    ]


def test_maintenance_is_said_of_a_queue_too(admin_client, worker):
    QueueFactory(name="mail")
    JobFactory(queue="mail")
    Maintenance.objects.create(since=ago(1), reason="New disks.")

    ((text, _, _),) = page_of(admin_client).context["reasons"]

    assert text.startswith("Maintenance mode is on")
    assert maintenance.current()


def test_only_the_latest_events_are_looked_at(api, worker, monkeypatch):
    monkeypatch.setattr(fleet, "RECENT", 1)
    JobFactory(queue="mail")
    (fetched,) = api.fetch("mail", worker_id="w1")
    api.ack(fetched["id"])

    assert why(JobFactory(queue="mail")) == [CLEAR]
