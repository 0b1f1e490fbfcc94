"""Routing by version: declared over HTTP, by the Python worker, and shown to operators (OJS job
versioning §8)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser
from django.test import RequestFactory
from django.utils import timezone

import jobs
from jobs.admin.why import why
from jobs.conf import ojs_settings
from jobs.models import Job, Queue
from jobs.spec.envelope import envelope
from jobs.spec.validation import new_job
from jobs.spec.versions import read_versions
from jobs.store.contract import stamp
from tests.factories import JobFactory, WorkerFactory, ago
from tests.ojs_client import refusal
from tests.processes import eventually, free_port
from tests.workers.site import Shop, becomes
from workers import protocol
from workers.admin.figures import Figures
from workers.alerts.problems import unwanted_versions
from workers.models import Worker
from workers.protocol import Description
from workers.runtime.handlers import forget, handler
from workers.runtime.inline import perform

REGISTRATION = {"hostname": "host-1", "pid": 1, "queues": ["default"], "concurrency": 10}
VERSIONS = ("1.0", "1.9", "2.0", "3.1", None)


def handlers(versions: str | None) -> list[dict[str, Any]]:
    return [{"type": "t", "versions": versions} if versions else {"type": "t"}]


def bounds(**said: str) -> dict[str, list[int | None]]:
    return {name: list(read_versions(text)) for name, text in said.items()}


def versions_of(found: list[dict[str, Any]]) -> list[str | None]:
    return [job.get("version") for job in found]


# Routing (VER-003 to VER-006)


@pytest.mark.django_db
@pytest.mark.parametrize("declared_by", ["registration", "heartbeat"])
@pytest.mark.parametrize(
    ("said", "given"),
    [
        (None, ["1.0", "1.9", "2.0", "3.1", None]),
        ("*", ["1.0", "1.9", "2.0", "3.1", None]),
        ("2.0", ["2.0", None]),
        (">=1.0 <3.0", ["1.0", "1.9", "2.0", None]),
        (">=2.0", ["2.0", "3.1", None]),
        ("<1.5", ["1.0", None]),
        ("4.0", [None]),
    ],
)
def test_a_worker_is_given_the_versions_it_declared_and_all_that_have_none(
    api, declared_by, said, given
):
    for version in VERSIONS:
        api.pushed(type="t", version=version)
    if declared_by == "registration":
        body = REGISTRATION | {"worker_id": "w", "handlers": handlers(said)}
        assert api.send("workers/register", body).status_code == 200
    else:
        api.send("workers/register", REGISTRATION | {"worker_id": "w", "handlers": handlers("9.9")})
        api.send("workers/heartbeat", {"worker_id": "w", "handlers": handlers(said)})

    assert versions_of(api.fetch(worker_id="w", count=10)) == given
    # The others wait for a worker that accepts them.
    waiting = Job.objects.filter(state="available").count()
    assert waiting == len(VERSIONS) - len(given)
    assert len(api.fetch(worker_id="another", count=10)) == waiting


@pytest.mark.django_db
@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
def test_ranges_hold_beside_limits_and_with_what_a_fetch_carries(api, limited):
    if limited:
        Queue.objects.create(name="default", concurrency=5)
    protocol.register("w", Description(queues=["default"], job_versions=bounds(t="<2.0")))
    first, other, second = (api.pushed(type="t", version=text) for text in ("1.0", "2.0", "1.1"))

    assert [job["id"] for job in api.fetch(worker_id="w")] == [first]
    acks = [{"job_id": first}]
    reply = api.send("workers/fetch", {"queues": ["default"], "worker_id": "w", "acks": acks})

    assert [job["id"] for job in reply.json()["jobs"]] == [second]
    assert api.job(first)["state"] == "completed"
    assert api.job(other)["state"] == "available"


@pytest.mark.django_db
def test_a_worker_with_ranges_is_held_to_its_concurrency(api):
    protocol.register(
        "w", Description(queues=["default"], concurrency=2, job_versions=bounds(t="1.0"))
    )
    for _ in range(3):
        api.pushed(type="t", version="1.0")

    assert len(api.fetch(worker_id="w", count=10)) == 2
    assert api.fetch(worker_id="w", count=10) == []


@pytest.mark.django_db
def test_a_registration_or_a_heartbeat_changes_what_a_worker_takes(api):
    def taken() -> Any:
        return Worker.objects.get().job_versions

    protocol.register("w", Description(job_versions=bounds(t="1.0", u=">=2.0")))
    protocol.beat("w", description=Description(hostname="host-1"))
    assert taken() == bounds(t="1.0", u=">=2.0"), "a heartbeat that says nothing changes nothing"
    protocol.beat("w", description=Description(job_versions=bounds(t="2.0")))
    assert taken() == bounds(t="2.0")
    protocol.register("w", Description())
    assert taken() is None, "a registration says all there is to say"
    Worker.objects.all().delete()
    protocol.beat("w", description=Description(job_versions=bounds(t="2.0")))
    assert taken() == bounds(t="2.0"), "so that one discovered by its heartbeat is given no others"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "handlers"),
        (["t"], "handlers[0]"),
        ([{"versions": "1.0"}], "handlers[0].type"),
        ([{"type": "t", "versions": 2}], "handlers[0].versions"),
        ([{"type": "t", "versions": "^1.0"}], "handlers[0].versions"),
        ([{"type": "t", "versions": ">=3.0 <2.0"}], "handlers[0].versions"),
        ([{"type": "t"}, {"type": "t", "versions": "1.0"}], "handlers[1].type"),
    ],
)
def test_a_declaration_that_cannot_be_read_is_refused_whole(api, said, field):
    reply = api.send("workers/register", REGISTRATION | {"worker_id": "w", "handlers": said})

    assert refusal(reply)["details"]["field"] == field
    assert not Worker.objects.exists()


@pytest.mark.django_db
def test_steps_of_a_workflow_and_runs_of_a_cron_job_have_versions_of_their_own(api):
    steps = [{"type": "t", "args": [], "version": "1.0"}, {"type": "t@2.0", "args": []}]
    api.send("workflows", {"type": "group", "jobs": steps})
    cron = {"name": "nightly", "cron": "0 3 * * *", "type": "t", "version": "3.1"}
    assert api.send("cron", cron).status_code == 201
    assert api.send("cron/nightly/trigger").status_code < 300

    assert sorted(versions_of(api.fetch(count=10))) == ["1.0", "2.0", "3.1"]


# In the admin


@pytest.mark.django_db
def test_a_job_that_no_worker_takes_says_why_it_waits():
    job = JobFactory(type="t", version_number=read_versions("2.0").least)
    WorkerFactory(queues=["default"], job_versions=bounds(t="1.0"))

    assert why(job) == ["The only running worker of “default” does not take version 2.0 of “t”."]
    WorkerFactory(queues=["default"])
    assert why(job) == ["Nothing known is in its way: it waits for a worker of its queue to fetch."]


@pytest.mark.django_db
@pytest.mark.parametrize("another", [None, bounds(other="5.0"), bounds(t="2.0")])
def test_versions_that_no_worker_takes_need_attention_once_they_have_waited(another):
    wait = ojs_settings.WAIT_LIMIT.total_seconds() + 60
    Queue.objects.get_or_create(name="default")
    WorkerFactory(queues=["default"], job_versions=bounds(t="1.0"))
    for text in ("1.0", "2.0", "2.0"):
        JobFactory(type="t", version_number=read_versions(text).least, enqueued_at=ago(wait))
    JobFactory(type="t", enqueued_at=ago(wait))

    assert shown() == ["Version 2.0 of “t” waits in “default”, and no live worker takes it."]
    # One that declares nothing for the type, or accepts the version.
    WorkerFactory(queues=["default"], job_versions=another)
    assert shown() == []


@pytest.mark.django_db
def test_however_many_queues_wait_the_dashboard_asks_for_two(django_assert_max_num_queries):
    wait = ojs_settings.WAIT_LIMIT.total_seconds() + 60
    for number in range(9):
        Queue.objects.get_or_create(name=f"q{number}")
        JobFactory(queue=f"q{number}", enqueued_at=ago(wait + number))
    few = figures()
    with django_assert_max_num_queries(3):
        assert list(unwanted_versions(few)) == []

    WorkerFactory(queues=[f"q{number}" for number in range(9)], job_versions=bounds(t="1.0"))
    with django_assert_max_num_queries(5):
        assert list(unwanted_versions(figures())) == []


def figures() -> Figures:
    """Figures for a user who may not view any page."""
    request: Any = RequestFactory().get("/")
    request.user = AnonymousUser()
    return Figures(admin.site, request)


def shown() -> list[str]:
    return [str(item.text) for item in unwanted_versions(figures())]


# The Python worker


@pytest.mark.slow
@pytest.mark.parametrize("over", ["direct", "http"])
def test_a_worker_process_declares_what_its_handlers_take(tmp_path, database_url, over):
    shop = Shop(tmp_path, database_url, over)
    if over == "direct":
        _sees_its_own_versions(shop)
    else:
        with shop.server(free_port()):
            _sees_its_own_versions(shop)


@pytest.mark.parametrize(
    ("version", "outcome"),
    [("1.9", "version_not_supported"), (2, None), ("2.9", None), (None, None)],
)
def test_a_handler_never_runs_a_version_it_does_not_take(version, outcome):
    """A server without support for versions may send it nevertheless."""
    handler("tests.versioned", versions=">=2.0 <3.0")(lambda context: None)
    made = new_job({"type": "tests.versioned", "args": [], "version": version}, timezone.now())
    stamp([made], timezone.now())
    try:
        report, _ = perform(envelope(made), worker_id="w")
    finally:
        forget("tests.versioned")

    assert getattr(report, "type", None) == outcome


def _sees_its_own_versions(shop: Shop) -> None:
    old = jobs.enqueue("shop.versioned", version="1.0")
    new = jobs.enqueue("shop.versioned", version="2.3")
    neither = jobs.enqueue("shop.versioned")
    task = jobs.enqueue("tests.shop.tasks.multiply", [2, 3], version="1.0")
    with shop.worker():
        becomes(new, "completed")
        becomes(neither, "completed")
        taken = {"shop.versioned", "tests.shop.tasks.multiply"}
        eventually(lambda: set(Worker.objects.get().job_versions) == taken)

    rows = Job.objects.in_bulk()
    assert (rows[new.id].result, rows[neither.id].result) == ("2.3", None)
    assert [(rows[job.id].state, rows[job.id].attempt) for job in (old, task)] == [
        ("available", 0),
        ("available", 0),
    ]
