"""Lineage from handlers, long histories, and erasing all that is known of a person."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.apps import apps
from django.core import serializers
from django.core.management import CommandError, call_command
from django.utils import timezone

import jobs
from jobs import engine, history, testing
from jobs.access.audit import Tally, of_shell
from jobs.engine import Failure, erasure
from jobs.errors import InvalidRequest, StorageUnavailable
from jobs.http.authentication import make_key
from jobs.models import Checkpoint, Event, Job, OperatorAction, RefusedFinish, Workflow
from jobs.record.events import job_event
from jobs.spec.reserved import WEBHOOK_QUEUE
from jobs.spec.validation import new_job
from jobs.store.database import atomic
from tests.factories import JobFactory, ago
from tests.ojs_client import OJSClient
from tests.operators import answer, choose, messages, staff
from workers.chores import long_histories, reaper
from workers.models import WebhookDelivery, WebhookSubscription
from workers.runtime import handler, handlers

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    known = set(handlers._handlers)
    yield
    for name in set(handlers._handlers) - known:
        handlers.forget(name)


def test_jobs_that_a_handler_enqueues_are_its_children():
    made: dict[str, Any] = {}

    @handler("test.history.order")
    def order(context: Any) -> None:
        made["mail"] = jobs.enqueue("test.history.mail")
        made["many"] = jobs.enqueue_many({"type": "test.history.mail", "args": [n]} for n in (1, 2))
        made["flow"] = jobs.chain(
            jobs.job("test.history.step"), jobs.job("test.history.step")
        ).enqueue()

    @handler("test.history.mail")
    def mail(context: Any, *args: Any) -> None:
        if not args:
            made["log"] = jobs.enqueue("test.history.step")

    @handler("test.history.step")
    def step(context: Any) -> None:
        pass

    outside = jobs.enqueue("test.history.step")
    root = jobs.enqueue("test.history.order")
    testing.run_jobs()

    def members(job: Any) -> tuple[Any, Any]:
        found = Job.objects.get(pk=job.id).attributes
        return found.get("parent_id"), found.get("root_id")

    assert members(outside) == members(root) == (None, None)
    first = str(root.id)
    assert members(made["mail"]) == (first, first)
    assert [members(job) for job in made["many"]] == [(first, first)] * 2
    assert members(made["log"]) == (str(made["mail"].id), first)
    steps = Job.objects.filter(workflow=made["flow"].id)
    assert [(s.attributes["parent_id"], s.attributes["root_id"]) for s in steps] == [
        (first, first)
    ] * 2
    below = history.lineage(root.id)["children"]
    assert (
        sorted(node["type"] for node in below)
        == ["test.history.mail"] * 3 + ["test.history.step"] * 2
    )
    assert history.lineage(made["log"].id)["root_id"] == first


def test_the_history_can_be_read_and_purged_from_python():
    job = jobs.enqueue("email.send", ["ann@example.com"])

    assert [entry["event_type"] for entry in history.entries(job.id)] == ["job.created"]
    assert history.purge(job.id) == 1
    assert history.entries(job.id) == []


def test_a_long_history_keeps_its_newest_events(settings):
    settings.OJS = {"EVENTS_PER_JOB": 5}
    busy, calm = JobFactory(active=True), JobFactory(active=True)
    for job, count in ((busy, 8), (calm, 4)):
        Event.objects.bulk_create(
            job_event("job.progress", job, time=timezone.now(), data={"progress_percent": n})
            for n in range(count)
        )

    assert long_histories.trim() == 3
    assert long_histories.trim() == 0

    assert [e["data"]["percent"] for e in history.entries(busy.pk)] == [3, 4, 5, 6, 7]
    assert len(history.entries(calm.pk)) == 4


def test_all_that_is_too_much_of_a_history_goes_at_once(settings, monkeypatch):
    settings.OJS = {"EVENTS_PER_JOB": 5}
    monkeypatch.setattr(engine.history, "BATCH", 2)
    for _ in range(3):
        job = JobFactory(active=True)
        Event.objects.bulk_create(
            job_event("job.progress", job, time=timezone.now()) for _ in range(10)
        )

    assert reaper.sweep(only=["long-histories"])["long-histories"] == 15
    assert Event.objects.filter(type="job.progress").count() == 15


def test_each_event_is_looked_at_once(monkeypatch):
    """Also those that were there before, and those of a record that has lost its first one."""
    monkeypatch.setattr(long_histories, "PIECE", 2)
    job = JobFactory(active=True)
    old = [job_event("job.progress", job, time=timezone.now()) for _ in range(7)]
    Event.objects.bulk_create(old)
    Event.objects.order_by("pk").first().delete()
    looked: list[int] = []
    busy_jobs = engine.history.busy_jobs

    def noted(after: int, last: int) -> set[str]:
        looked.extend(Event.objects.filter(pk__gt=after, pk__lte=last).values_list("pk", flat=True))
        return busy_jobs(after, last)

    monkeypatch.setattr(engine.history, "busy_jobs", noted)
    long_histories.trim()
    Event.objects.bulk_create([job_event("job.progress", job, time=timezone.now())])
    long_histories.trim()
    long_histories.trim()

    assert looked == list(Event.objects.order_by("pk").values_list("pk", flat=True))


def release(job_id: Any, **fields: Any) -> None:
    engine.fail([Failure(job_id, worker_id="w-1", release=True, **fields)])


def release_for_later(job_id: Any) -> None:
    release(job_id, retry_in=timedelta(hours=1))
    engine.run_now([job_id])


def fail(job_id: Any) -> None:
    engine.fail([Failure(job_id, worker_id="w-1", retry_in=timedelta(0))])


def let_expire(job_id: Any) -> None:
    Job.objects.filter(pk=job_id).update(reserved_until=ago(1))
    engine.expire()


def die_and_return(job_id: Any) -> None:
    engine.fail([Failure(job_id, worker_id="w-1", retryable=False)])
    engine.retry([job_id])


def cancel_and_return(job_id: Any) -> None:
    engine.cancel(job_id)
    engine.retry([job_id], cancelled=True)


@pytest.mark.parametrize(
    "end", [release, release_for_later, fail, let_expire, die_and_return, cancel_and_return]
)
def test_a_job_that_runs_again_and_again_is_among_the_busy(settings, end):
    """However its attempts end, a third of its events at least are not those of any job."""
    job = jobs.enqueue("email.send", ["ann@example.com"])
    Job.objects.update(max_attempts=9)
    for _ in range(5):
        (claimed,) = engine.claim(["default"], worker_id="w-1")
        assert claimed.id == job.id
        end(job.id)

    events = Event.objects.filter(subject=str(job.id))
    others = events.exclude(engine.history.ORDINARY).count()
    assert events.count() - 3 <= 3 * others

    settings.OJS = {"EVENTS_PER_JOB": 5}
    before = events.count()
    assert long_histories.trim() == before - 5


NAME, ADDRESS = "c-1017", "ann.rivers@example.com"


def everything_stored() -> str:
    """All rows of both apps and of the admin's history, as text."""
    models = [
        model
        for label in ("ojs_jobs", "ojs_workers", "admin")
        for model in apps.get_app_config(label).get_models()
        if not model._meta.proxy
    ]
    return "\n".join(
        serializers.serialize("json", model._default_manager.all()) for model in models
    )


def about_ann(api: OJSClient, **job: Any) -> str:
    meta = {"customer": NAME}
    return api.pushed(**({"args": [ADDRESS], "meta": meta} | job))


def left_by_ann(api: OJSClient) -> None:
    """Everything that jobs about a person may leave behind, wherever it is stored."""
    done, broken = about_ann(api), about_ann(api, options={"retry": {"max_attempts": 1}})
    api.fetch(worker_id="w1", count=2)
    progress = {"job_id": done, "progress": 0.5, "message": ADDRESS, "worker_id": "w1"}
    assert api.send("workers/progress", progress).status_code == 200
    saved = api.put(
        f"/ojs/v1/jobs/{done}/checkpoint",
        orjson.dumps({"state": {"to": ADDRESS}, "worker_id": "w1"}),
        content_type="application/json",
    )
    assert saved.status_code == 200
    api.ack(done, result={"sent_to": ADDRESS}, worker_id="w1")
    api.ack(done, result={"sent_to": ADDRESS}, worker_id="another")
    api.nack(broken, message=f"{ADDRESS} bounced", worker_id="w1")
    # Many at once, with an answer that is kept for repetitions.
    bulk = [{"type": "email.send", "args": [ADDRESS], "meta": {"customer": NAME}}]
    api.send("jobs/bulk", {"jobs": bulk, "idempotency_key": "k"})
    # A workflow, whose second step gets the result of the first.
    step = {"type": "email.send", "args": [ADDRESS], "meta": {"customer": NAME}}
    api.send("workflows", {"type": "chain", "steps": [step, step], "name": "welcome"})
    for _ in range(3):
        for job in api.fetch(worker_id="w1", count=9):
            api.ack(job["id"], result={"sent_to": ADDRESS}, worker_id="w1")
    # An operator looked for them.
    chosen = {"filter": {"meta": {"customer": NAME}, "state": "discarded"}}
    assert api.send("jobs/bulk/retry", chosen).status_code == 200
    (again,) = api.fetch(worker_id="w1")
    api.nack(again["id"], message=f"{ADDRESS} bounced", worker_id="w1")


def test_a_person_can_be_erased_without_a_trace():
    api = OJSClient(make_key("shop", scopes=["produce", "work", "operate"])[1])
    kept = api.pushed(args=["bob@example.com"])
    api.fetch(worker_id="w1")
    api.ack(kept, worker_id="w1")
    hook = {"url": "https://example.com/hook", "events": ["job.*"], "secret": "s"}
    WebhookSubscription.objects.create(**hook)
    left_by_ann(api)
    reaper.sweep(["webhooks"])
    assert WebhookDelivery.objects.filter(body__contains=ADDRESS).exists()
    assert everything_stored().count(ADDRESS) > 10
    assert OperatorAction.objects.filter(verb="retry_job").exists()

    done = history.erase(meta={"customer": NAME})

    stored = everything_stored()
    assert (ADDRESS in stored, NAME in stored) == (False, False)
    assert (done.jobs, done.left) == (5, [])
    assert (RefusedFinish.objects.count(), Checkpoint.objects.count()) == (0, 0)
    assert not Workflow.objects.exists()
    assert set(WebhookDelivery.objects.values_list("subject", flat=True)) == {kept}
    about_jobs = Event.objects.exclude(job_type="").exclude(queue=WEBHOOK_QUEUE)
    assert set(about_jobs.values_list("subject", flat=True)) == {kept}
    assert api.job(kept)["state"] == "completed"


def test_unfinished_jobs_are_left_and_named_until_they_have_ended():
    running = JobFactory(active=True, meta={"customer": NAME})
    waiting = JobFactory(meta={"customer": NAME})
    done = JobFactory(completed=True, meta={"customer": NAME})

    first = history.erase(meta={"customer": NAME})
    engine.cancel_jobs([running.pk, waiting.pk])
    second = history.erase(ids=[running.pk, waiting.pk])

    assert (first.jobs, sorted(first.left)) == (1, sorted([running.pk, waiting.pk]))
    assert (second.jobs, second.left) == (2, [])
    assert not Job.objects.filter(pk=done.pk).exists()


def test_a_job_stays_while_another_waits_for_its_result_and_then_leaves_none():
    first = JobFactory(completed=True, result={"sent_to": ADDRESS}, args=[ADDRESS])
    waiting = new_job({"type": "a.b", "args": []}, timezone.now())
    (second,) = engine.enqueue_after([waiting], {waiting.id: [first.pk]})
    heir = Job.objects.get(pk=second.id)
    assert heir.parent_results == [{"sent_to": ADDRESS}]

    early = history.erase(ids=[first.pk])
    Job.objects.filter(pk=heir.pk).update(state="completed", finished_at=ago(1))
    late = history.erase(ids=[first.pk])

    assert (early.jobs, early.left, late.jobs) == (0, [first.pk], 1)
    assert ADDRESS not in everything_stored()


def test_what_the_record_knows_of_a_deleted_job_is_erased_by_its_id():
    job = jobs.enqueue("email.send", [])
    Event.objects.create(
        type="job.failed",
        subject=str(job.id),
        job_type="email.send",
        time=ago(1),
        data={"error": {"message": ADDRESS}},
    )
    Job.objects.all().delete()

    assert history.erase(ids=[job.id]).events == 2
    assert ADDRESS not in everything_stored()


def test_other_apps_forget_in_the_same_transaction(monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(engine.erasure, "forgetting", [heard.extend])
    done = JobFactory(completed=True)
    JobFactory(active=True)

    history.erase(ids=list(Job.objects.values_list("pk", flat=True)))

    assert heard == [str(done.pk)]


def test_it_must_be_said_whose_jobs_are_erased():
    for how in ({}, {"ids": [JobFactory().pk], "meta": {"customer": NAME}}):
        with pytest.raises(InvalidRequest):
            history.erase(**how)


def test_erase_in_the_admin_keeps_no_record_of_which():
    done, running = JobFactory(completed=True, args=[ADDRESS]), JobFactory(active=True)
    dpo = staff("view_job", "erase_job")

    page = answer(dpo, choose(dpo, "ojs_jobs_job", "erase", done, running), reason="asked for it")

    assert "1 job was erased" in " ".join(messages(page))
    assert ADDRESS not in everything_stored()
    assert str(done.pk) not in everything_stored()
    assert Job.objects.get() == running
    action = OperatorAction.objects.get()
    assert (action.verb, action.count, action.selection, action.reason) == (
        "erase_job",
        1,
        {},
        "asked for it",
    )


def test_the_shell_erases_and_keeps_no_record_of_whom(capsys):
    JobFactory(completed=True, meta={"customer": NAME}, args=[ADDRESS])
    JobFactory(active=True, meta={"customer": NAME}, args=[ADDRESS])

    with pytest.raises(CommandError, match="Not finished"):
        call_command("jobs", "erase", "--meta", f"customer={NAME}", "--reason", "asked for it")

    assert "1 erased" in capsys.readouterr().out
    action = OperatorAction.objects.get()
    assert (action.verb, action.count, action.selection) == (
        "erase_job",
        1,
        {"meta": ["customer"]},
    )
    assert action.reason == "asked for it"


@pytest.mark.parametrize("where", ["admin", "shell"])
def test_the_audit_has_what_was_erased_before_a_failure(monkeypatch, where):
    monkeypatch.setattr(erasure, "BATCH", 1)
    rows = JobFactory.create_batch(4, completed=True, meta={"customer": NAME})

    def fail(names):
        if str(rows[2].pk) in names:
            raise StorageUnavailable("away")

    monkeypatch.setattr(erasure, "forgetting", [fail])

    if where == "admin":
        dpo = staff("view_job", "erase_job")
        answer(dpo, choose(dpo, "ojs_jobs_job", "erase", *rows), reason="asked for it")
    else:
        with pytest.raises(CommandError):
            call_command("jobs", "erase", "--meta", f"customer={NAME}", "--reason", "asked for it")

    assert set(Job.objects.all()) == set(rows[2:])
    action = OperatorAction.objects.get()
    assert (action.verb, action.count, action.reason) == ("erase_job", 2, "asked for it")


def test_an_action_in_several_transactions_is_recorded_with_those_that_were_committed():
    tally = Tally(of_shell(), "erase_job", kind="job")
    with pytest.raises(ZeroDivisionError), atomic():
        tally.add(5)
        raise ZeroDivisionError

    tally.add(2)
    tally.add(3)

    assert OperatorAction.objects.get().count == 5


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (["customer=p1", "customer=p2"], "once for each"),
        (["customer"], "NAME=VALUE"),
        (["customer="], "NAME=VALUE"),
        (["=p1"], "NAME=VALUE"),
        (["="], "NAME=VALUE"),
    ],
)
def test_the_shell_refuses_what_would_erase_other_jobs_than_were_meant(members, said):
    for customer in ("p1", "p2", ""):
        JobFactory(completed=True, meta={"customer": customer})
    words = [word for member in members for word in ("--meta", member)]

    with pytest.raises(CommandError, match=said):
        call_command("jobs", "erase", *words)

    assert Job.objects.count() == 3
    assert not OperatorAction.objects.exists()


def test_jobs_with_an_empty_member_are_erased_and_the_audit_keeps_its_filters():
    JobFactory(completed=True, meta={"customer": ""})
    searched = OperatorAction.objects.create(verb="retry_job", selection={"filter": {"q": "mail"}})

    assert history.erase(meta={"customer": ""}).jobs == 1

    searched.refresh_from_db()
    assert searched.selection == {"filter": {"q": "mail"}}
