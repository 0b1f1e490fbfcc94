"""`jobs.enqueue()`: the caller's transaction, the rules of HTTP, and nothing but JSON."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

import jobs
from jobs import producer, testing
from jobs.errors import DuplicateJob, InvalidRequest
from jobs.models import Job, Listener, Queue
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.store import wakeup
from tests.database import atomic, connection
from tests.factories import JobFactory, ahead
from tests.processes import PATIENCE


class Oops(Exception):
    pass


def refused(**arguments):
    with pytest.raises(InvalidRequest) as caught:
        jobs.enqueue(**{"type": "email.send"} | arguments)
    return caught.value


def test_importing_jobs_before_apps_are_ready_loads_no_model():
    code = "import jobs, sys; jobs.__version__; assert 'jobs.models' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


@pytest.mark.django_db
def test_a_job_is_stored_with_everything_that_was_said_of_it():
    made = jobs.enqueue(
        "email.send",
        ["user@example.com", {"template": "welcome"}],
        queue="mail",
        priority=7,
        expires_at=timedelta(hours=2),
        retry={"max_attempts": 9, "initial_interval": timedelta(seconds=90)},
        meta={"tenant": "acme"},
        tags=["onboarding"],
        timeout=30,
        visibility_timeout=timedelta(minutes=5),
        unique={"keys": ["type"]},
    )

    job = Job.objects.get(pk=made.id)
    assert (job.type, job.queue, job.priority) == ("email.send", "mail", 7)
    assert job.args == ["user@example.com", {"template": "welcome"}]
    assert (job.meta, job.tags) == ({"tenant": "acme"}, ["onboarding"])
    assert (job.max_attempts, job.retry["initial_interval"]) == (9, "PT1M30S")
    assert job.timeout == timedelta(seconds=30)
    assert job.visibility_timeout == timedelta(minutes=5)
    assert job.expires_at - job.created_at == pytest.approx(
        timedelta(hours=2), abs=timedelta(minutes=1)
    )
    assert job.attributes["unique"] == {"keys": ["type"]}
    assert job.state == State.AVAILABLE


@pytest.mark.django_db
@pytest.mark.parametrize(
    "spelled", [lambda moment: moment, datetime.isoformat], ids=["datetime", "timestamp"]
)
def test_a_moment_may_be_a_datetime_or_a_timestamp(spelled):
    moment = ahead(3600)

    made = jobs.enqueue("email.send", scheduled_at=spelled(moment))

    assert made.state == State.SCHEDULED
    assert Job.objects.get().scheduled_at == moment


@pytest.mark.django_db
def test_a_moment_may_be_a_timedelta_from_now():
    before = timezone.now()

    made = jobs.enqueue("email.send", scheduled_at=timedelta(hours=1))

    assert made.state == State.SCHEDULED
    scheduled_at = Job.objects.get().scheduled_at
    assert before <= scheduled_at - timedelta(hours=1) <= timezone.now()


def test_a_datetime_without_a_time_zone_is_refused():
    assert "time zone" in refused(scheduled_at=datetime(2030, 1, 1)).message


# The cache of validated jobs


@pytest.mark.django_db
def test_a_job_enqueued_like_another_shares_nothing_with_it():
    options = {"queue": "mail", "meta": {"tenant": {"name": "acme"}}, "tags": ["a"]}

    first = jobs.enqueue("email.send", [{"to": "ann"}], **options)
    first.meta["tenant"]["name"] = "changed"
    first.tags.append("changed")
    second = jobs.enqueue("email.send", [{"to": "bob"}], **options)

    assert second.id != first.id
    stored = Job.objects.get(pk=second.id)
    assert (stored.args, stored.meta, stored.tags, stored.project) == (
        [{"to": "bob"}],
        {"tenant": {"name": "acme"}},
        ["a"],
        "",
    )


@pytest.mark.django_db
def test_what_is_remembered_of_a_job_are_not_its_arguments():
    jobs.enqueue("email.archive", ["a long letter"])

    remembered = [job for job in producer.memory.values() if job.type == "email.archive"]
    assert [job.args for job in remembered] == [[]]


@pytest.mark.django_db
@pytest.mark.parametrize("option", ["scheduled_at", "expires_at", "enqueue_ttl"])
def test_a_time_from_now_is_another_one_each_time(option):
    value = 60 if option == "enqueue_ttl" else "+PT1H"
    name = "scheduled_at" if option == "scheduled_at" else "expires_at"

    first, second = (jobs.enqueue("email.send", **{option: value}) for _ in range(2))

    assert getattr(first, name) < getattr(second, name)


def test_a_mistake_is_refused_however_often_it_is_made(db):
    jobs.enqueue("email.send", ["fine"])

    for _ in range(2):
        assert refused(args=[{1, 2}]).details["field"] == "args[0]"
        assert refused(priority=1_000).details["field"] == "priority"


@pytest.mark.django_db
def test_a_job_is_rolled_back_with_the_transaction_it_belongs_to():
    with pytest.raises(Oops), atomic():
        jobs.enqueue("email.send", queue="rolled-back")
        raise Oops

    assert not Job.objects.exists()
    assert not Queue.objects.filter(pk="rolled-back").exists()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_waiting_workers_are_woken_when_the_transaction_commits_and_not_before():
    Listener.objects.create(name="tests:0", seen_at=timezone.now())
    with psycopg.connect(**wakeup._connection_parameters(), autocommit=True) as other:
        other.execute("LISTEN ojs_jobs")
        with atomic():
            jobs.enqueue("email.send", queue="mail")
            before_commit = list(other.notifies(timeout=0.1))

        assert before_commit == []
        (notification,) = other.notifies(timeout=PATIENCE, stop_after=1)
        assert notification.payload == "mail"


@pytest.mark.django_db
@pytest.mark.slow
def test_ten_thousand_jobs_in_one_call():
    made = jobs.enqueue_many({"type": "email.send", "args": [n]} for n in range(10_000))

    assert Job.objects.count() == 10_000
    assert [job.args[0] for job in made] == list(range(10_000))
    assert [job.args for job in Job.objects.order_by("enqueued_at", "id")[:3]] == [[0], [1], [2]]


@pytest.mark.django_db
def test_one_bad_job_of_many_makes_none_and_is_named():
    with pytest.raises(InvalidRequest) as caught:
        jobs.enqueue_many([{"type": "email.send"}, {"type": "email.send", "args": [Decimal(1)]}])

    assert caught.value.details["index"] == 1
    assert str(caught.value).startswith("Job 1 of the batch: The value at args[0]")
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_an_id_of_ones_own_makes_enqueueing_twice_an_error():
    identifier = uuid7()
    jobs.enqueue("email.send", id=identifier)

    with pytest.raises(DuplicateJob), atomic():
        jobs.enqueue("email.send", id=str(identifier))

    assert Job.objects.get().pk == identifier


@pytest.mark.django_db
def test_tuples_subclasses_of_text_and_enumerations_arrive_as_json():
    jobs.enqueue("email.send", (mark_safe("<b>"), State.ACTIVE, (1, 2), {"a": True}))

    assert Job.objects.get().args == ["<b>", "active", [1, 2], {"a": True}]


@pytest.mark.parametrize(
    ("args", "place", "advice"),
    [
        ([datetime(2030, 1, 1, tzinfo=UTC)], "args[0]", "isoformat"),
        ([1, {"price": Decimal("1.50")}], "args[1].price", "string"),
        ([uuid.UUID(int=1)], "args[0]", "string"),
        ([{1, 2}], "args[0]", "list"),
        ([b"bytes"], "args[0]", "decode"),
        ([gettext_lazy("Hello")], "args[0]", "str()"),
        ([JobFactory.build()], "args[0]", "primary key"),
        ([float("nan")], "args[0]", "nan"),
        ([2**53], "args[0]", "string"),
        ([{"n": 2.0**53}], "args[0].n", "string"),
        ([-1e300], "args[0]", "string"),
        (["nul\x00"], "args[0]", "NUL"),
        (["\ud800"], "args[0]", "surrogate"),
        ([{1: "one"}], "args[0]", "must be a string"),
        ([object()], "args[0]", "builtins.object"),
    ],
)
@pytest.mark.parametrize("among", [0, 2])
def test_what_json_cannot_carry_is_refused_where_it_stands(args, place, advice, among):
    with pytest.raises(InvalidRequest) as caught:
        jobs.enqueue_many(
            [{"type": "email.send", "args": [1]}] * among + [{"type": "email.send", "args": args}]
        )
    refusal = caught.value

    assert refusal.details["field"] == place
    assert refusal.details.get("index", 0) == among
    assert advice in refusal.message


@pytest.mark.parametrize("kind", [list, dict])
def test_arguments_are_nested_as_deeply_in_a_batch_as_alone(kind):
    def nested(levels):
        value = []
        for _ in range(levels - 1):
            value = [value] if kind is list or levels == 2 else {"in": value}
        return value if kind is list else [value]

    def allowed(items):
        with contextlib.suppress(InvalidRequest), testing.fake():
            return bool(jobs.enqueue_many(items))
        return False

    for levels in range(195, 206):
        deep = {"type": "email.send", "args": nested(levels)}
        assert allowed([deep]) == allowed([deep | {"args": []}, deep]), levels


@pytest.mark.django_db
def test_what_becomes_json_on_the_way_does_so_in_a_batch_too():
    args = [(mark_safe("<b>"), State.ACTIVE, (1, 2), {"a": True}), [(1, 2), 1.0, True, None]]

    made = jobs.enqueue_many({"type": "email.send", "args": each} for each in [*args, None])

    plain = [["<b>", "active", [1, 2], {"a": True}], [[1, 2], 1.0, True, None], []]
    assert repr([job.args for job in made]) == repr(plain)
    assert list(Job.objects.order_by("pk").values_list("args", flat=True)) == plain


@pytest.mark.django_db
def test_what_is_changed_after_enqueueing_is_not_in_the_job():
    items = [{"type": "email.send", "args": [{"to": "bob"}]} for _ in range(3)]

    made = jobs.enqueue_many(items)
    items[0]["args"][0]["to"] = "ann"

    assert [job.args for job in made] == [[{"to": "bob"}]] * 3


def test_a_list_that_contains_itself_is_refused():
    endless: list = []
    endless.append(endless)

    assert "nested" in refused(args=endless).message


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"type": "email send"}, "type"),
        ({"queue": "Mail!"}, "queue"),
        ({"priority": 101}, "priority"),
        ({"args": "not a list"}, "args"),
        ({"args": {"not": "a list"}}, "args"),
        ({"meta": [1]}, "meta"),
        ({"tags": "one"}, "tags"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"scheduled_at": 5}, "scheduled_at"),
        ({"scheduled_at": "tomorrow"}, "scheduled_at"),
        ({"retry": {"max_attempts": -1}}, "retry.max_attempts"),
        ({"retry": 3}, "retry"),
        ({"id": "7"}, "id"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": timedelta(days=40_000)}, "timeout"),
        ({"visibility_timeout": 0}, "visibility_timeout"),
        ({"total_timeout": -1}, "total_timeout"),
        ({"retry": jobs.Retry(initial_interval=float("nan"))}, "retry.initial_interval"),
        ({"retry": jobs.Retry(max_interval=float("inf"))}, "retry.max_interval"),
        ({"retry": jobs.Retry(non_retryable_errors="ValueError")}, "retry.non_retryable_errors"),
    ],
)
def test_the_rules_are_those_of_http(arguments, field):
    assert refused(**arguments).details["field"] == field


@pytest.mark.parametrize("option", ["timeout", "visibility_timeout"])
@pytest.mark.parametrize("seconds", [0.0006, 1e-9, timedelta(microseconds=1)])
def test_a_duration_below_a_millisecond_is_one_and_not_none(option, seconds):
    with testing.fake():
        made = jobs.enqueue("email.send", **{option: seconds})
        job = testing.get_job(made)

    assert getattr(job, option) == timedelta(milliseconds=1)


def test_the_refusal_of_a_naive_moment_says_what_to_use():
    with pytest.raises(InvalidRequest, match=r"timezone\.now\(\) or timezone\.make_aware\(\)"):
        jobs.enqueue("email.send", scheduled_at=datetime(2030, 1, 1))


def test_an_unknown_option_is_refused():
    with pytest.raises(InvalidRequest, match="no option 'que'"):
        jobs.enqueue_many([{"type": "email.send", "que": "mail"}])


@pytest.mark.django_db(transaction=True)
def test_async_code_enqueues_too():
    async def view():
        made = await jobs.aenqueue("email.send", [1], queue="mail")
        return made, *await jobs.aenqueue_many([{"type": "email.send"}])

    made = async_to_sync(view)()

    assert {job.pk for job in Job.objects.all()} == {job.id for job in made}


@pytest.mark.django_db
def test_one_job_costs_one_query(django_assert_num_queries, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        jobs.enqueue("email.send")  # creates the queue, and caches that it exists

    # SQLite: whether it may be stored, savepoint, job, event, savepoint released.
    with django_assert_num_queries(1 if connection.vendor == "postgresql" else 5):
        jobs.enqueue("email.send", [1])
