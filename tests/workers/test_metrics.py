"""Metrics: counted once from the events, by any process (OJS observability §8)."""

from __future__ import annotations

import builtins
import math

import pytest
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from jobs.http.authentication import make_key
from jobs.models import Event, Job, JobCounter, QueueFlow
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago
from tests.ojs_client import OJSClient, refusal
from workers.chores import reaper, tallies
from workers.models import EventCursor

pytestmark = pytest.mark.django_db

EMAIL = {"queue": "email", "type": "email.send"}


class Scrape:
    """The samples of a scrape: `scrape("ojs_queue_depth", queue="email", state="active")`."""

    def __init__(self, api):
        self.reply = api.see("metrics")
        assert self.reply.status_code == 200, self.reply.content
        self.families = list(text_string_to_metric_families(self.reply.content.decode()))

    def __call__(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(found) < 2, f"{name} {labels} is there {len(found)} times"
        return found[0] if found else None


def total(api, counter: str, **labels: str) -> float | None:
    return Scrape(api)(f"ojs_job_{counter}_total", **(labels or EMAIL))


def pushed(api, **job):
    return api.pushed(type="email.send", options={"queue": "email"} | job)


def fetched(api, count=1):
    return api.fetch("email", worker_id="w", count=count)


# What is counted


def test_a_job_is_counted_when_it_is_enqueued_and_when_it_is_completed(api):
    done = pushed(api)
    pushed(api)
    fetched(api)
    api.ack(done, worker_id="w")

    scrape = Scrape(api)

    assert scrape("ojs_job_enqueued_total", **EMAIL) == 2
    assert scrape("ojs_job_completed_total", **EMAIL) == 1
    assert scrape("ojs_job_failed_total", **EMAIL) == 0
    assert scrape("ojs_job_duration_seconds_count", **EMAIL, state="completed") == 1
    assert scrape("ojs_job_queue_time_seconds_count", **EMAIL) == 1
    assert scrape("ojs_queue_depth", queue="email", state="available") == 1
    assert scrape("ojs_queue_depth", queue="email", state="active") == 0


def test_a_scheduled_or_retried_job_is_enqueued_once_however_often_it_becomes_available(api):
    pushed(api, scheduled_at="2999-01-01T00:00:00Z")
    Job.objects.update(scheduled_at=ago(5))
    reaper.sweep(["due-jobs"])
    (job,) = fetched(api)
    api.nack(job["id"], retryable=True)
    Job.objects.update(scheduled_at=ago(5))
    fetched(api)

    scrape = Scrape(api)

    assert scrape("ojs_job_enqueued_total", **EMAIL) == 1
    assert scrape("ojs_job_retried_total", **EMAIL) == 1
    assert scrape("ojs_job_queue_time_seconds_count", **EMAIL) == 1, "the first attempt alone"


def test_a_pending_job_is_counted_when_it_is_activated(api):
    job_id = pushed(api, pending=True)
    assert total(api, "enqueued") is None

    api.send(f"jobs/{job_id}/activate")

    assert total(api, "enqueued") == 1


def test_a_step_of_a_workflow_is_counted_when_its_turn_comes(api):
    step = {"type": "email.send", "args": [], "options": {"queue": "email"}}
    api.send("workflows", {"type": "chain", "steps": [step, step]})
    assert total(api, "enqueued") == 1

    (first,) = fetched(api)
    api.ack(first["id"], worker_id="w")

    assert total(api, "enqueued") == 2


def test_failed_means_discarded_and_an_expired_job_is_both(api):
    pushed(api, retry={"max_attempts": 1})
    (job,) = fetched(api)
    api.nack(job["id"])
    pushed(api, expires_at="2999-01-01T00:00:00Z")
    Job.objects.filter(state="available").update(expires_at=ago(1))
    reaper.sweep(["expired-jobs"])

    scrape = Scrape(api)

    assert scrape("ojs_job_failed_total", **EMAIL) == 2
    assert scrape("ojs_job_expired_total", **EMAIL) == 1
    assert scrape("ojs_job_duration_seconds_count", **EMAIL, state="discarded") == 1


@pytest.mark.parametrize("running", [True, False])
def test_a_cancelled_job_has_a_duration_if_it_ran(api, running):
    job_id = pushed(api)
    if running:
        fetched(api)
    api.send(f"jobs/{job_id}/cancel")

    scrape = Scrape(api)

    assert scrape("ojs_job_cancelled_total", **EMAIL) == 1
    count = scrape("ojs_job_duration_seconds_count", **EMAIL, state="cancelled")
    assert count == (1 if running else None)


def test_a_wait_that_began_in_an_earlier_batch_is_measured_from_there(api):
    pushed(api)
    Event.objects.update(time=ago(45))
    tallies.count()
    fetched(api)

    scrape = Scrape(api)

    assert scrape("ojs_job_queue_time_seconds_bucket", **EMAIL, le="30.0") == 0
    assert scrape("ojs_job_queue_time_seconds_bucket", **EMAIL, le="60.0") == 1
    assert math.isclose(scrape("ojs_job_queue_time_seconds_sum", **EMAIL) or 0, 45, abs_tol=10)


def test_a_job_discarded_long_after_it_was_started_took_that_long(api):
    pushed(api, retry={"max_attempts": 1})
    fetched(api)
    Event.objects.update(time=ago(90))
    tallies.count()
    Job.objects.update(reserved_until=ago(1))
    reaper.sweep(["expired-reservations"])

    scrape = Scrape(api)

    assert scrape("ojs_job_duration_seconds_bucket", **EMAIL, state="discarded", le="60.0") == 0
    assert scrape("ojs_job_duration_seconds_bucket", **EMAIL, state="discarded", le="120.0") == 1


# Once, and bounded


def test_nothing_is_counted_twice_by_repeated_counts(api):
    pushed(api)
    for _ in range(3):
        tallies.count()

    assert total(api, "enqueued") == 1
    assert total(api, "enqueued") == 1


def test_what_one_process_counted_is_added_to_what_another_had(api, monkeypatch):
    monkeypatch.setattr(tallies, "BATCH", 2)
    for _ in range(5):
        pushed(api)
    for job in fetched(api, 5):
        api.ack(job["id"], worker_id="w")
    tallies.count()

    scrape = Scrape(api)

    for counter in ("enqueued", "completed"):
        assert scrape(f"ojs_job_{counter}_total", **EMAIL) == 5
    assert scrape("ojs_job_duration_seconds_count", **EMAIL, state="completed") == 5
    assert scrape("ojs_job_queue_time_seconds_count", **EMAIL) == 5


def test_counting_goes_on_where_the_release_before_stopped(api):
    """It read by transaction: some lower ids were still due."""
    for _ in range(3):
        pushed(api)
    overtaken, counted, _ = Event.objects.order_by("id")
    Event.objects.filter(pk=counted.pk).update(txid=6)
    Event.objects.filter(pk=overtaken.pk).update(txid=7)
    Event.objects.filter(pk__gt=counted.pk).update(txid=8)
    EventCursor.objects.create(name=tallies.FORMER, txid=6, event_id=counted.pk)

    for _ in range(2):
        tallies.count()

    assert total(api, "enqueued") == 2, "one of the three was counted before"
    former = EventCursor.objects.get(name=tallies.FORMER)
    assert not Event.objects.filter(txid__gt=former.txid).exists(), "nothing is left to the others"


def test_a_client_that_makes_up_types_fills_neither_the_table_nor_prometheus(api, settings):
    settings.OJS = settings.OJS | {"METRICS_MAX_SERIES": 3}
    pushed(api)
    tallies.count()
    for number in range(6):
        api.pushed(type=f"made.up.n{number}", options={"queue": "email"})

    scrape = Scrape(api)
    pushed(api)

    assert JobCounter.objects.count() == 4
    assert scrape("ojs_job_enqueued_total", queue="(other)", type="(other)") == 4
    assert total(api, "enqueued") == 2, "those that are known go on"


def test_only_the_last_minutes_of_a_flow_are_kept(api):
    QueueFlow.objects.create(queue="email", minutes={"100": [1, 1, 1.0]})
    pushed(api)
    tallies.count()

    (flow,) = QueueFlow.objects.all()

    assert list(flow.minutes.values()) == [[1, 0, 0.0]]


# Gauges


def test_the_fleet_is_counted_as_it_is(api):
    WorkerFactory()
    WorkerFactory(state="quiet")
    WorkerFactory(dead=True)
    QueueFactory(name="email")
    JobFactory(queue="email", active=True)
    JobFactory(queue="email", retryable=True)
    JobFactory(queue="email", enqueued_at=ago(100))

    scrape = Scrape(api)

    assert scrape("ojs_workers_active") == 1
    assert scrape("ojs_workers_busy", queue="email") == 1
    assert scrape("ojs_queue_depth", queue="email", state="retryable") == 1
    assert 100 <= (scrape("ojs_queue_oldest_seconds", queue="email") or 0) < 200


def test_the_pressure_of_a_bounded_queue_is_a_gauge(api):
    """OJS backpressure §10.2."""
    QueueFactory(name="email", max_depth=4)
    QueueFactory(name="free")
    for state in ({}, {"retryable": True}, {"active": True}):
        JobFactory(queue="email", **state)
        JobFactory(queue="free", **state)

    scrape = Scrape(api)

    assert scrape("ojs_backpressure_pressure", queue="email") == 0.5
    assert scrape("ojs_backpressure_pressure", queue="free") is None


# The endpoint


def test_the_format_is_plain_text_unless_openmetrics_is_asked_for(api):
    plain = api.see("metrics")
    modern = api.get("/ojs/v1/metrics", headers={"Accept": "application/openmetrics-text;q=0.9"})

    assert plain.headers["Content-Type"] == "text/plain"
    assert b"# TYPE ojs_job_enqueued_total counter" in plain.content
    assert modern.headers["Content-Type"].startswith("application/openmetrics-text")
    assert modern.content.endswith(b"# EOF\n")


@pytest.mark.parametrize("path", ["/metrics", "/ready", "/health"])
def test_the_stand_alone_server_answers_where_machines_look_by_habit(transactional_db, api, path):
    assert api.get(path).status_code == 200


@pytest.mark.parametrize("path", ["metrics", "autoscaling"])
def test_a_key_of_one_project_sees_nothing_of_the_whole_server(db, path):
    _, key = make_key("shop", scopes=["observe"], project="shop")

    assert refusal(OJSClient(key).see(path, queues="email"))["code"] == "permission_denied"


def test_without_the_extra_the_endpoint_says_what_to_install(api, monkeypatch):
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.partition(".")[0] == "prometheus_client":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    reply = api.see("metrics")

    assert reply.status_code == 501
    error = reply.json()["error"]
    assert error["code"] == "unsupported"
    assert "django-ojs[metrics]" in error["hint"]
    assert api.see("autoscaling", queues="email").status_code == 200


def test_switched_off_nothing_is_counted(api, settings):
    settings.OJS = settings.OJS | {"METRICS": False}
    pushed(api)
    tallies.count()

    assert not JobCounter.objects.exists()
    assert refusal(api.see("metrics"))["code"] == "not_found"


def test_without_a_record_of_events_there_are_gauges_and_no_standing_counters(api, settings):
    settings.OJS = settings.OJS | {"RECORD_EVENTS": False}
    pushed(api)

    scrape = Scrape(api)

    assert scrape("ojs_queue_depth", queue="email", state="available") == 1
    assert b"ojs_job_enqueued" not in scrape.reply.content


# Autoscaling


def wanted(api, *queues):
    reply = api.see("autoscaling", queues=",".join(queues))
    assert reply.status_code == 200, reply.content
    return reply.json()


def flow(queue: str, arrived: int, ran: int, seconds: float) -> None:
    minute = int(timezone.now().timestamp() // 60) - 1
    QueueFlow.objects.create(queue=queue, minutes={str(minute): [arrived, ran, seconds]})


def test_an_idle_queue_needs_no_worker(api):
    assert wanted(api, "never-used")["wanted_workers"] == 0


def test_what_waits_is_to_be_worked_off_in_time(api):
    """100 jobs of 6 seconds within a minute need ten places: one worker of ten."""
    QueueFactory(name="email")
    flow("email", arrived=0, ran=10, seconds=60)
    JobFactory.create_batch(100, queue="email")

    document = wanted(api, "email")

    assert document["wanted_workers"] == 1
    assert document["queues"][0]["wanted_concurrency"] == 10
    assert document["queues"][0]["run_seconds"] == 6


def test_arrivals_times_run_time_is_wanted_though_nothing_waits(api):
    """3600 jobs in five to six minutes, each of 10 seconds: 100 to 120 places."""
    flow("email", arrived=3600, ran=100, seconds=1000)

    assert 10 <= wanted(api, "email")["wanted_workers"] <= 12


def test_no_more_is_wanted_than_one_place_for_each_job(api):
    QueueFactory(name="email")
    flow("email", arrived=0, ran=1, seconds=3600)
    JobFactory.create_batch(3, queue="email")

    assert wanted(api, "email")["queues"][0]["wanted_concurrency"] == 3


def test_running_jobs_keep_their_workers(api):
    QueueFactory(name="email")
    JobFactory.create_batch(25, queue="email", active=True)

    assert wanted(api, "email")["wanted_workers"] == 3


def test_a_paused_queue_wants_no_more_than_what_runs(api):
    QueueFactory(name="email", paused=True)
    flow("email", arrived=3600, ran=100, seconds=1000)
    JobFactory.create_batch(5, queue="email")
    JobFactory(queue="email", active=True)

    document = wanted(api, "email")

    assert document["wanted_workers"] == 1
    assert document["queues"][0]["paused"] is True


def test_what_a_worker_does_at_once_is_what_its_kind_says(api):
    QueueFactory(name="email")
    JobFactory.create_batch(8, queue="email", active=True)
    WorkerFactory(queues=["email"], concurrency=2)
    WorkerFactory(queues=["other"], concurrency=50)

    assert wanted(api, "email")["wanted_workers"] == 4


def test_queues_of_one_deployment_are_added_up_before_rounding(api):
    for name in ("a", "b"):
        QueueFactory(name=name)
        JobFactory(queue=name, active=True)

    document = wanted(api, "a", "b")

    assert document["wanted_workers"] == 1
    assert [queue["wanted_workers"] for queue in document["queues"]] == [1, 1]


def test_jobs_that_come_through_the_door_are_what_is_measured(api):
    for _ in range(3):
        pushed(api)
    for job in fetched(api, 3):
        api.ack(job["id"], worker_id="w")
    Event.objects.filter(type="job.completed").update(data={"duration_ms": 2000})
    tallies.count()

    (queue,) = wanted(api, "email")["queues"]

    assert queue["run_seconds"] == 2
    assert queue["arrivals_per_second"] + 0.001 >= 3 / 361


@pytest.mark.parametrize("queues", ["", ",", ",".join(f"q{n}" for n in range(101))])
def test_queues_must_be_named_and_not_too_many(api, queues):
    assert refusal(api.see("autoscaling", queues=queues))["details"]["field"] == "queues"


def test_the_number_is_a_metric_too(api):
    QueueFactory(name="email")
    JobFactory.create_batch(25, queue="email", active=True)

    assert Scrape(api)("ojs_queue_wanted_workers", queue="email") == 3


def test_a_scrape_of_many_queues_costs_no_more_queries_than_of_one(
    api, django_assert_max_num_queries
):
    for number in range(30):
        QueueFactory(name=f"q{number}")
        JobFactory(queue=f"q{number}")
        flow(f"q{number}", 1, 1, 1.0)

    with django_assert_max_num_queries(26):
        api.see("metrics")
