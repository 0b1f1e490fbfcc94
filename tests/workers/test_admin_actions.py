"""Quiet, Terminate and Resume in the admin: confirmed, explained, recorded, relayed (OJS worker
§2.3)."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.urls import reverse

from jobs.access.audit import of_shell
from jobs.models import ApiKey, DeadJob, Job, Queue
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago
from tests.operators import (
    answer,
    choose,
    confirm,
    list_of,
    messages,
    operator,
    press,
    staff,
    viewer,
)
from workers.fleet import drain
from workers.models import Worker

pytestmark = pytest.mark.django_db

WORKER = "ojs_workers_worker"


def beat(api, worker, state="running"):
    """The state in the reply to the worker's next heartbeat."""
    reply = api.send("workers/heartbeat", {"worker_id": worker.pk, "state": state})
    return reply.json()["state"]


def history():
    entries = LogEntry.objects.order_by("object_id")
    return [(entry.object_id, entry.user.username, entry.change_message) for entry in entries]


@pytest.mark.parametrize("directive", ["quiet", "terminate"])
def test_a_directive_in_the_admin_reaches_the_next_heartbeat(api, directive):
    worker, other = WorkerFactory(), WorkerFactory()
    assert beat(api, worker) == "running"

    confirm(operator(), WORKER, directive, worker)

    assert beat(api, worker) == directive
    assert beat(api, other) == "running"


def test_nothing_happens_before_the_operator_has_confirmed(api):
    worker = WorkerFactory()

    page = choose(operator(), WORKER, "quiet", worker)

    assert page.status_code == 200
    assert beat(api, worker) == "running"
    assert not LogEntry.objects.exists()


def test_the_confirmation_names_the_workers_and_the_jobs_they_hold():
    busy, idle = WorkerFactory(worker_id="web_1/a"), WorkerFactory(worker_id="web_2")
    other = WorkerFactory(worker_id="web_3")
    held = [JobFactory(active=True, reserved_by=busy.pk, type="report.render") for _ in range(2)]
    elsewhere = JobFactory(active=True, reserved_by=other.pk)

    content = choose(operator(), WORKER, "terminate", busy, idle).content.decode()

    assert "web_1/a" in content and "web_2" in content
    assert "web_3" not in content
    assert "report.render" in content
    assert all(str(job.pk) in content for job in held)
    assert str(elsewhere.pk) not in content
    assert "2 workers" in content and "2 jobs that they hold" in content


def test_jobs_too_many_to_be_named_are_counted(monkeypatch):
    monkeypatch.setattr("workers.admin.actions.SHOWN_JOBS", 2)
    worker = WorkerFactory()
    for _ in range(5):
        JobFactory(active=True, reserved_by=worker.pk)

    content = choose(operator(), WORKER, "quiet", worker).content.decode()

    assert "5 jobs that it holds" in content
    assert "and 3 more" in content


def test_the_confirmation_of_a_hundred_workers_takes_few_queries(django_assert_max_num_queries):
    ops = operator()
    # The first request of a process looks up content types; which test makes it is chance.
    confirm(ops, WORKER, "quiet", WorkerFactory())
    LogEntry.objects.all().delete()
    workers = [WorkerFactory() for _ in range(100)]
    for worker in workers:
        JobFactory(active=True, reserved_by=worker.pk)

    with django_assert_max_num_queries(13):
        page = choose(ops, WORKER, "quiet", *workers)
    with django_assert_max_num_queries(27):
        answer(ops, page)

    assert LogEntry.objects.count() == 100


def test_each_worker_has_the_order_and_its_reason_in_its_history():
    workers = [WorkerFactory(worker_id="web_1/a"), WorkerFactory(worker_id="web_2")]

    confirm(operator(), WORKER, "quiet", *workers, reason="Deploy 42")

    assert history() == [
        ("web_1/a", "ops", "Directed to “quiet”. Reason: Deploy 42"),
        ("web_2", "ops", "Directed to “quiet”. Reason: Deploy 42"),
    ]


def test_a_reason_may_be_left_out_but_not_be_endless():
    ops, worker = operator(), WorkerFactory()
    page = choose(ops, WORKER, "quiet", worker)

    again = answer(ops, page, reason="x" * 501)
    assert "at most 500 characters" in again.content.decode()
    assert not LogEntry.objects.exists()

    answer(ops, page)
    assert history() == [(worker.pk, "ops", "Directed to “quiet”.")]


def test_the_message_says_how_many_will_hear_it_and_when():
    ops = operator()
    workers = [WorkerFactory(), WorkerFactory()]

    done = confirm(ops, WORKER, "quiet", *workers)
    assert messages(done) == ["2 workers will be told “quiet” at their next heartbeat."]

    done = confirm(ops, WORKER, "quiet", workers[0], WorkerFactory())
    assert messages(done) == [
        "1 worker will be told “quiet” at its next heartbeat. "
        "1 is not affected: it is in this state already, or further on, or gone."
    ]


@pytest.mark.parametrize(
    ("action", "told", "enforced"),
    [
        ("quiet", "will be told “quiet” at its next heartbeat", "given no more jobs."),
        (
            "terminate",
            "will be told “terminate” at its next heartbeat",
            "given no more jobs and cannot be asked to stop: stop their processes.",
        ),
        ("resume", "is given jobs again, from its next heartbeat on", "given jobs again."),
    ],
)
def test_who_cannot_be_told_is_not_said_to_hear_it(action, told, enforced):
    ops = operator()
    before = {"directive": "quiet"} if action == "resume" else {}

    def workers(*protocols):
        return [WorkerFactory(protocol=name, **before) for name in protocols]

    alone = confirm(ops, WORKER, action, *workers("agq", "flare"))
    mixed = confirm(ops, WORKER, action, *workers("agq", "rota", "flare"))

    assert messages(alone) == [f"2 workers are {enforced}"]
    assert messages(mixed) == [f"1 worker {told}. 2 workers are {enforced}"]


@pytest.mark.parametrize("action", ["terminate", "drain"])
def test_the_confirmation_says_who_cannot_be_asked_to_stop(action):
    ops = operator()
    agq, flare, ojs = [WorkerFactory(protocol=name) for name in ("agq", "flare", "ojs")]

    def content(*workers):
        return choose(ops, WORKER, action, *workers).content.decode()

    assert "cannot be asked to stop" not in content(ojs)
    assert "1 of them cannot be asked to stop" in content(ojs, agq)
    assert "2 of them cannot be asked to stop" in content(flare, agq)
    assert "stop their processes" in content(flare, agq)


def test_nothing_leads_back_from_terminate():
    ops, worker = operator(), WorkerFactory()
    confirm(ops, WORKER, "terminate", worker)

    for action in ("quiet", "resume"):
        confirm(ops, WORKER, action, worker)

    assert Worker.objects.get().desired_state == "terminate"


def test_resume_takes_back_what_an_operator_asked_for(api):
    ops = operator()
    quieted, own_reasons = WorkerFactory(), WorkerFactory(state="quiet")
    confirm(ops, WORKER, "quiet", quieted)
    beat(api, quieted)
    beat(api, quieted, state="quiet")

    done = confirm(ops, WORKER, "resume", quieted, own_reasons, reason="Deployed")

    assert messages(done) == [
        "1 worker is given jobs again, from its next heartbeat on. "
        "1 is not affected: it is in this state already, or further on, or gone."
    ]
    assert beat(api, quieted, state="quiet") == "running"
    assert beat(api, own_reasons, state="quiet") == "quiet"
    assert ("Resumed. Reason: Deployed") in [entry[2] for entry in history()]


def test_a_quieted_worker_gets_no_more_jobs(api):
    worker = WorkerFactory()
    api.pushed(queue="default")

    confirm(operator(), WORKER, "quiet", worker)

    assert api.fetch("default", worker_id=worker.pk) == []


def test_everything_that_a_filter_matches_is_ordered_as_it_was_shown():
    ops = operator()
    blue, green = WorkerFactory(labels=["blue"]), WorkerFactory(labels=["green"])
    page = ops.post(
        f"{list_of(WORKER)}?label=blue",
        {"action": "quiet", "index": "0", "select_across": "1", "_selected_action": [blue.pk]},
    )
    late = WorkerFactory(labels=["blue"])

    done = answer(ops, page)

    assert done.context["back"] == f"{list_of(WORKER)}?label=blue"
    directives = dict(Worker.objects.values_list("pk", "directive"))
    assert directives == {blue.pk: "quiet", green.pk: "", late.pk: ""}


@pytest.mark.parametrize("action", ["quiet", "terminate", "resume", "drain"])
def test_the_dead_are_left_out_and_not_counted(action):
    ops = operator()
    live = [WorkerFactory(labels=["blue"]) for _ in range(2)]
    dead = [WorkerFactory(labels=["blue"], dead=True) for _ in range(3)]

    lists = ops.get(f"{list_of(WORKER)}?label=blue").content.decode()
    page = choose(ops, WORKER, action, *live, *dead)

    assert "All 2 live workers that match:" in lists
    assert "3 that are dead or have left are skipped." in lists
    assert {worker.pk for worker in page.context["objects"]} == {worker.pk for worker in live}
    text = page.content.decode()
    assert "2 live workers; 3 that are dead or have left are skipped." in text
    assert choose(ops, WORKER, action, *dead).status_code == 302


def test_to_resume_says_that_a_drain_will_quiet_them_again():
    ops = operator()
    workers = [WorkerFactory() for _ in range(3)]
    drain.start([worker.pk for worker in workers], actor=of_shell(), max_unavailable="1")

    page = choose(ops, WORKER, "resume", *workers)

    assert "will quiet 3 of them again" in page.content.decode()
    free = choose(ops, WORKER, "resume", WorkerFactory())
    assert "will quiet" not in free.content.decode()


def test_a_button_on_the_page_of_a_worker_asks_and_shows_how_it_comes_to_it(api):
    ops, worker = operator(), WorkerFactory(worker_id="host/web_1")
    url = reverse("admin:ojs_workers_worker_change", args=[quote(worker.pk)])

    page = press(ops, ops.get(url), "quiet")
    done = answer(ops, page, reason="Too hot")

    assert done.context["words"].startswith("0 of 1 report “quiet”")
    assert done.context["back"] == url
    assert beat(api, worker) == "quiet"
    page_of_history = ops.get(reverse("admin:ojs_workers_worker_history", args=[quote(worker.pk)]))
    assert "Too hot" in page_of_history.content.decode()


# Users who may only view

EVERY_ACTION = [
    (WORKER, "quiet"),
    (WORKER, "terminate"),
    (WORKER, "resume"),
    ("ojs_jobs_job", "cancel"),
    ("ojs_jobs_job", "retry"),
    ("ojs_jobs_deadjob", "retry"),
    ("ojs_jobs_deadjob", "discard"),
    ("ojs_jobs_queue", "pause"),
    ("ojs_jobs_queue", "resume"),
    ("ojs_jobs_apikey", "revoke"),
]


def everything():
    """One row for each action, and everything that exists, for comparison."""
    WorkerFactory(worker_id="w", directive="quiet", directed_at=ago(9))
    JobFactory(dead=True)
    QueueFactory(name="mail")
    ApiKey.objects.get_or_create(name="ci", digest="d", prefix="p")


def snapshot():
    models = (Worker, Job, Queue, ApiKey, LogEntry)
    return [list(model.objects.order_by("pk").values()) for model in models]


def row_of(model):
    return {
        WORKER: Worker,
        "ojs_jobs_job": Job,
        "ojs_jobs_deadjob": DeadJob,
        "ojs_jobs_queue": Queue,
        "ojs_jobs_apikey": ApiKey,
    }[model].objects.get()


@pytest.mark.parametrize(("model", "action"), EVERY_ACTION)
def test_who_may_only_look_is_refused_every_action(model, action):
    everything()
    client, row, before = viewer(), row_of(model), snapshot()
    sent = {"action": action, "_selected_action": [row.pk]}

    forms = (
        sent,
        sent | {"index": "0"},
        sent | {"select_across": "1"},
        sent | {"confirmed": "1", "shown": f'["{row.pk}"]', "select_across": "1"},
        sent | {"action": ["", action], "index": "1"},
    )
    for form in forms:
        assert client.post(list_of(model), form).status_code == 403

    assert 'name="action"' not in client.get(list_of(model)).content.decode()
    assert snapshot() == before


@pytest.mark.parametrize(("model", "action"), EVERY_ACTION)
def test_who_may_do_it_is_asked_first(admin_client, model, action):
    everything()
    before = snapshot()

    page = choose(admin_client, model, action, row_of(model))

    assert page.status_code == 200
    assert page.context["question"].action == action
    assert snapshot() == before


@pytest.mark.parametrize(("model", "action"), EVERY_ACTION)
def test_who_is_not_logged_in_is_sent_to_the_login(client, model, action):
    everything()

    reply = choose(client, model, action, row_of(model))

    assert reply.status_code == 302
    assert reply.url.startswith("/admin/login/")


def test_who_may_change_jobs_may_not_direct_workers():
    worker = WorkerFactory()
    client = staff("view_job", "cancel_job", "view_worker")

    assert choose(client, WORKER, "quiet", worker).status_code == 403
    assert Worker.objects.get().directive == ""
