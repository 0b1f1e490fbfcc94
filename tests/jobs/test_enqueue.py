"""PUSH: jobs are created, all of a request or none (OJS core §7.1, HTTP §7.1, §7.2)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.utils import timezone

from jobs import engine
from jobs.access.projects import assign_project
from jobs.engine.insertion import BATCH
from jobs.errors import DuplicateJob, InvalidRequest
from jobs.models import Event, Job, Queue
from jobs.signals import jobs_enqueued
from jobs.spec.batches import new_jobs
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from tests.database import atomic, connection
from tests.factories import JobFactory, ago, ahead


def push(**document):
    """Enqueue one job through the engine; return the result."""
    now = timezone.now()
    return engine.enqueue([new_job({"type": "email.send", "args": []} | document, now)])[0]


def push_many(count: int, **document):
    now = timezone.now()
    documents = [{"type": "email.send", "args": [number]} | document for number in range(count)]
    return engine.enqueue(new_jobs(documents, now))


def wire(moment) -> str:
    return moment.isoformat()


# Initial state


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({}, State.AVAILABLE),
        ({"scheduled_at": wire(ahead(3600))}, State.SCHEDULED),
        ({"delay_until": "+PT1H"}, State.SCHEDULED),
        ({"scheduled_at": wire(ago(3600))}, State.AVAILABLE),
        ({"pending": True}, State.PENDING),
        ({"pending": True, "scheduled_at": wire(ahead(3600))}, State.PENDING),
    ],
)
def test_the_options_decide_in_which_state_a_job_begins(db, options, state):
    job = push(options=options)

    assert job.state == state
    assert Job.objects.get().state == state


def test_a_new_job_has_no_attempt_and_both_stamps_are_the_same(db):
    pushed = push()

    job = Job.objects.get()
    assert (job.attempt, job.attempt_counted, job.max_attempts) == (0, False, 3)
    assert job.created_at == job.enqueued_at == pushed.created_at == pushed.enqueued_at
    assert abs(timezone.now() - job.created_at) < timedelta(seconds=30)
    assert (job.started_at, job.finished_at, job.reserved_until) == (None, None, None)


def test_everything_the_client_said_is_stored(db):
    sent = {
        "id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "args": [1, 2.5, "three", None, True, {"four": [4]}],
        "meta": {"trace_id": "t-1", "nested": {"deep": [1]}},
        "schema": "urn:ojs:schema:email.send:v1",
        "x_team": {"name": "billing"},
        "options": {
            "queue": "billing",
            "priority": -7,
            "timeout_ms": 1500,
            "visibility_timeout_ms": 90_000,
            "retry": {"max_attempts": 7, "jitter": False},
            "tags": ["a", "b"],
            "unique": {"keys": ["type"]},
            "expires_at": "2999-01-01T00:00:00+02:00",
        },
    }

    push(**sent)

    job = Job.objects.get()
    assert str(job.id) == sent["id"]
    assert (job.type, job.queue, job.priority) == ("email.send", "billing", -7)
    assert (job.args, job.meta) == (sent["args"], sent["meta"])
    assert job.timeout == timedelta(seconds=1.5)
    assert job.visibility_timeout == timedelta(seconds=90)
    assert (job.max_attempts, job.retry) == (7, {"max_attempts": 7, "jitter": False})
    assert job.tags == ["a", "b"]
    assert job.expires_at.isoformat() == "2998-12-31T22:00:00+00:00"
    assert job.attributes == {
        "schema": sent["schema"],
        "unique": {"keys": ["type"]},
        "x_team": {"name": "billing"},
        "expires_at": "2999-01-01T00:00:00+02:00",
    }


@pytest.mark.parametrize("company", ["like it", "unlike it"])
def test_a_batch_stores_what_each_job_would_store_by_itself(db, company):
    """What all jobs of a batch share is sent to the database once."""
    document = {
        "type": "email.send",
        "args": [{"nobody": "else's"}],
        "meta": {"capabilities": ["gpu"], "trace_id": "t-1"},
        "x_team": "billing",
        "options": {
            "queue": "billing",
            "priority": 5,
            "tags": ["a"],
            "timeout_ms": 1500,
            "visibility_timeout_ms": 90_000,
            "total_timeout": 600,
            "grace_period": 5,
            "result_ttl": 60,
            "retry": {"max_attempts": 7},
            "scheduled_at": wire(ahead(3600)),
            "expires_at": wire(ahead(7200)),
        },
    }
    other = document | {"args": [2]} | ({} if company == "like it" else {"options": {"tags": []}})

    (alone,) = engine.enqueue(new_jobs([document], timezone.now()))
    together, another = engine.enqueue(new_jobs([document, other], timezone.now()))

    first, second = (Job.objects.filter(pk=job.id).values().get() for job in (alone, together))
    own = {"id", "created_at", "enqueued_at", "deadline"}
    assert {name: first[name] for name in first.keys() - own} == {
        name: second[name] for name in second.keys() - own
    }
    assert first["deadline"] - first["created_at"] == second["deadline"] - second["created_at"]
    assert (first["needs"], first["max_attempts"]) == (["gpu"], 7)
    assert Job.objects.get(pk=another.id).tags == other["options"]["tags"]


@pytest.mark.parametrize(
    "document",
    [
        {"type": "email.send", "args": [{"to": ["ann"]}]},
        {"type": "email.send", "args": [], "meta": {"a": [1]}, "x_team": "billing"},
        {"type": "email.send", "args": [], "options": {"priority": 7, "queue": "billing"}},
        {"type": "email.send", "args": [], "options": {"tags": ["a"], "schema": "x"}},
        {"type": "email.send", "args": [], "options": {"pending": True}},
        {
            "type": "email.send",
            "args": [],
            "options": {"rate_limit": {"key": "k", "concurrency": 1}},
        },
    ],
)
def test_a_job_is_the_same_whichever_statement_stored_it(db, document):
    """There is one for a plain job, one for uniform batches, and one for all others."""
    new = new_job(document, timezone.now())
    chosen = new_job(document | {"id": str(uuid7())}, timezone.now())
    mixed = {"type": "report.build", "args": [], "meta": {"other": 1}}
    stored = [
        *engine.enqueue([new]),
        *engine.enqueue([chosen]),
        *engine.enqueue(new_jobs([document] * 2, timezone.now())),
        engine.enqueue(new_jobs([document, mixed], timezone.now()))[0],
    ]

    def row(job):
        (kept,) = Job.objects.filter(pk=job.id).values()
        assert kept["created_at"] == kept["enqueued_at"] == job.created_at
        assert (kept.pop("id"), kept.pop("state")) == (job.id, job.state)
        return {name: kept[name] for name in kept.keys() - {"created_at", "enqueued_at"}}

    def events(job):
        recorded = Event.objects.filter(subject=str(job.id)).values()
        return [
            {name: event[name] for name in event.keys() - {"id", "txid", "subject", "time"}}
            for event in recorded
        ]

    assert [row(job) for job in stored] == [row(new)] * 5
    assert [events(job) for job in stored] == [events(new)] * 5
    assert len(events(new)) == (new.state != State.PENDING)


def test_jobs_that_are_alike_to_python_only_keep_their_own_meta(db):
    documents = [
        {"type": "email.send", "args": [], "meta": {"copies": it}} for it in (1, True, 1.0)
    ]

    jobs = engine.enqueue(new_jobs(documents, timezone.now()))

    stored = Job.objects.in_bulk([job.id for job in jobs])
    assert [type(stored[job.id].meta["copies"]) for job in jobs] == [int, bool, float]


@pytest.mark.parametrize(
    "odd",
    [
        {"id": "01890a5d-ac96-774b-bcce-b302099a8057"},
        {"options": {"priority": True}},
        {"options": {"unique": {"keys": ["type"]}}},
        {"meta": {"copies": 1}, "args": [1]},
        {"meta": {"copies": True}, "args": [1]},
        {"queue": None},
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_a_job_that_is_not_like_the_others_of_its_batch_is_looked_at_by_itself(db, odd, place):
    documents = [{"type": "email.send", "args": [number]} for number in range(4)]
    documents[place] |= odd

    def outcome(checked):
        jobs = engine.enqueue(checked())
        rows = Job.objects.in_bulk([job.id for job in jobs])
        return [(rows[job.id].priority, rows[job.id].meta, rows[job.id].args) for job in jobs]

    def attempt(checked):
        try:
            return outcome(checked)
        except InvalidRequest as refusal:
            return refusal.details["field"]

    alone = attempt(lambda: [new_job(document, timezone.now()) for document in documents])
    Job.objects.all().delete()

    assert attempt(lambda: new_jobs(documents, timezone.now())) == alone
    if "id" in odd:
        assert Job.objects.filter(pk=odd["id"]).exists()


@pytest.mark.parametrize("others", [{}, {"args": "one"}, {"args": {"one": 1}}])
def test_arguments_are_looked_at_in_every_job_of_a_batch(others):
    documents = [{"type": "email.send", "args": [1]}] * 2 + [{"type": "email.send"} | others]

    with pytest.raises(InvalidRequest) as refused:
        new_jobs(documents, timezone.now())

    assert (refused.value.details["field"], refused.value.details["index"]) == ("args", 2)


def test_jobs_that_came_back_are_those_that_are_stored(db):
    jobs = push_many(3, meta={"trace": ["t"]}, options={"tags": ["a"]}, x_team="billing")

    rows = Job.objects.in_bulk([job.id for job in jobs])
    for job in jobs:
        row = rows[job.id]
        assert (job.args, job.meta, job.tags) == (row.args, row.meta, row.tags)
        assert (job.state, job.created_at) == (row.state, row.created_at)
        assert (job.attributes, job.enqueued_at) == (row.attributes, row.enqueued_at)
    jobs[0].meta["trace"].append("mine")
    jobs[0].tags.append("mine")
    assert (jobs[1].meta, jobs[1].tags) == ({"trace": ["t"]}, ["a"])


@pytest.mark.parametrize("count", [3, BATCH + 1])
@pytest.mark.parametrize("looked_at", ["before", "afterwards"])
def test_it_makes_no_difference_when_the_jobs_of_a_batch_are_looked_at(db, looked_at, count):
    jobs = new_jobs([{"type": "a", "args": [n], "meta": {"m": 1}} for n in range(count)], ago(0))
    if looked_at == "before":
        assert len(list(jobs)) == count

    engine.enqueue(assign_project(jobs, "acme"))

    rows = Job.objects.in_bulk()
    assert [(job.id, job.project, job.args) for job in jobs] == [
        (row.id, "acme", row.args) for row in sorted(rows.values(), key=lambda row: row.id)
    ]
    assert all(job.created_at == rows[job.id].created_at for job in jobs)
    # They equal a list of them.
    assert jobs == list(jobs) == jobs[:]
    assert jobs[1] is list(jobs)[1] is jobs[-count + 1]
    assert repr(jobs[:2]) == repr(list(jobs)[:2])
    assert all(job.state == State.AVAILABLE for job in jobs)


def test_every_job_of_a_batch_gets_what_its_queue_says(db):
    Queue.objects.create(name="slow", config={"default_timeout": 7}, is_guarded=True)

    jobs = push_many(3, options={"queue": "slow"})

    assert {job.timeout for job in jobs} == {timedelta(seconds=7)}
    assert set(Job.objects.values_list("timeout", flat=True)) == {timedelta(seconds=7)}


# Order


def test_jobs_of_one_batch_are_fetched_in_the_order_they_were_sent(db):
    push_many(20)

    assert [job.id for job in engine.claim(["default"], count=20)] == list(
        Job.objects.order_by("args__0").values_list("pk", flat=True)
    )


def test_batches_come_back_in_the_order_they_were_sent(db):
    jobs = push_many(5)

    assert [job.args for job in jobs] == [[0], [1], [2], [3], [4]]


def test_a_batch_of_several_statements_is_one_in_order_and_in_time(db):
    jobs = assign_project(
        new_jobs([{"type": "a", "args": [n]} for n in range(BATCH + 5)], ago(0)), "acme"
    )
    engine.enqueue(jobs)

    assert [job.args for job in jobs] == [[number] for number in range(BATCH + 5)]
    stored = Job.objects.order_by("enqueued_at", "pk").values_list("pk", "args__0", "project")
    assert list(stored) == [(job.id, number, "acme") for number, job in enumerate(jobs)]
    recorded = Event.objects.filter(type="job.enqueued").order_by("id")
    assert list(recorded.values_list("subject", flat=True)) == [str(job.id) for job in jobs]


# All or none


def test_an_id_that_exists_is_refused_and_named(db):
    existing = JobFactory()

    with pytest.raises(DuplicateJob) as refused:
        push(id=str(existing.pk))

    assert refused.value.details == {"existing_job_id": str(existing.pk)}
    assert Job.objects.count() == 1


def test_one_taken_id_refuses_the_whole_batch(db):
    existing = JobFactory()
    now = timezone.now()
    ids = [str(uuid7()), str(existing.pk), str(uuid7())]
    documents = [{"type": "a", "args": [], "id": job_id} for job_id in ids]

    with pytest.raises(DuplicateJob) as refused:
        engine.enqueue(new_jobs([{"type": "b", "args": []}, *documents], now))

    assert refused.value.details == {"existing_job_id": str(existing.pk)}
    assert list(Job.objects.all()) == [existing]
    assert not Event.objects.exists()


def test_an_id_named_twice_in_one_batch_is_refused(db):
    twice = str(uuid7())

    with pytest.raises(DuplicateJob) as refused:
        push_many(2, id=twice)

    assert twice in refused.value.message and not refused.value.details, "none exists"
    assert not Job.objects.exists()


def test_the_id_of_a_finished_job_stays_taken(db):
    existing = JobFactory(completed=True)

    with pytest.raises(DuplicateJob):
        push(id=str(existing.pk))


@pytest.mark.django_db(transaction=True)
def test_a_batch_too_big_for_one_statement_is_still_all_or_none():
    """The connection breaks while the last job is being sent, after the others were stored."""

    def break_at_the_last_job(execute, sql, parameters, many, context):
        if "INSERT INTO" in sql and f"[{BATCH}]" in str(parameters):
            raise DatabaseError("The line went dead.")
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(break_at_the_last_job), pytest.raises(DatabaseError):
        push_many(BATCH + 1)

    assert not Job.objects.exists()


@pytest.mark.slow
def test_ten_thousand_jobs_fit_in_one_batch(db):
    push_many(10_000, options={"queue": "bulk"})

    assert Job.objects.filter(queue="bulk", state=State.AVAILABLE).count() == 10_000


def test_an_empty_batch_is_no_work_at_all(db, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert engine.enqueue([]) == []


# Queues


def test_a_queue_exists_from_its_first_job_on(db):
    push(options={"queue": "billing"})
    push(options={"queue": "billing"})

    assert [queue.name for queue in Queue.objects.all()] == ["billing"]


def test_what_operators_decided_about_a_queue_survives_new_jobs(db):
    engine.pause("billing", reason="Maintenance")

    push(options={"queue": "billing"})

    assert Queue.objects.get(pk="billing").is_paused


# Events


@pytest.mark.parametrize(
    ("options", "events"),
    [
        ({"priority": 4}, [("job.enqueued", {"priority": 4})]),
        ({"pending": True}, []),
    ],
)
def test_the_durable_record_tells_of_jobs_that_entered_a_queue(db, options, events):
    push(options=options)

    assert list(Event.objects.values_list("type", "data")) == events


def test_the_durable_record_tells_when_a_scheduled_job_is_due(db):
    due = ahead(60)

    job = push(scheduled_at=wire(due))

    event = Event.objects.get()
    assert (event.type, event.subject, event.queue) == ("job.scheduled", str(job.id), "default")
    assert list(event.data) == ["scheduled_at"]


def test_nothing_is_recorded_where_events_are_off(db, settings):
    settings.OJS = {"RECORD_EVENTS": False}

    push()

    assert not Event.objects.exists()


def test_the_signal_is_sent_once_the_jobs_are_committed(db, django_capture_on_commit_callbacks):
    heard = []

    def listen(*, jobs, **kwargs):
        heard.extend(job.type for job in jobs)

    jobs_enqueued.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            push_many(2, type="report.build")
            assert heard == []
    finally:
        jobs_enqueued.disconnect(listen)

    assert heard == ["report.build", "report.build"]


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_enqueue_leaves_nothing_and_sends_nothing():
    heard = []

    def listen(**kwargs):
        heard.append(kwargs)

    jobs_enqueued.connect(listen)
    try:
        with pytest.raises(ZeroDivisionError), atomic():
            push(options={"queue": "billing"})
            raise ZeroDivisionError
        push(options={"queue": "billing"})
    finally:
        jobs_enqueued.disconnect(listen)

    assert len(heard) == 1
    assert Job.objects.count() == 1
    # The queue that was rolled back was created again.
    assert Queue.objects.filter(pk="billing").exists()


# Queries


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [1, 100])
def test_enqueueing_is_one_statement_for_one_job_and_for_many(django_assert_num_queries, count):
    # The first commit lets the process cache that the queue exists.
    push(options={"queue": "billing"})

    with django_assert_num_queries(1):
        push_many(count, options={"queue": "billing"})
