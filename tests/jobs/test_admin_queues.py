"""Queues in the admin: depth, pause and resume, the concurrency limit."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils.html import strip_tags

from jobs.admin import queue as queue_admin
from jobs.models import Event, Job, Queue
from jobs.record import dashboard, rollup
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, QueueFactory, ago
from tests.operators import answer, buttons, choose, confirm, list_of, messages, press, staff

pytestmark = pytest.mark.django_db

QUEUE = "ojs_jobs_queue"


def page_of(queue):
    return reverse("admin:ojs_jobs_queue_change", args=[queue.pk])


def test_the_depth_of_a_queue_is_counted_by_state():
    QueueFactory(name="mail")
    for state in State:
        JobFactory(queue="mail", **{} if state == State.AVAILABLE else {state: True})
    JobFactory(queue="mail", created_at=ago(90))
    JobFactory(queue="other")

    depths = dashboard.depths(["mail", "empty"])

    assert depths["mail"].jobs == {"available": 2, "scheduled": 1, "retryable": 1, "active": 1}
    assert (depths["empty"].jobs, depths["empty"].waiting_since) == ({}, None)
    assert dashboard.pending("mail") == 1


def test_the_oldest_wait_is_that_of_the_job_that_waits_longest(admin_client):
    QueueFactory(name="mail")
    JobFactory(queue="mail", created_at=ago(7290), priority=-5)
    JobFactory(queue="mail", created_at=ago(10), priority=5)
    JobFactory(queue="mail", retryable=True, created_at=ago(90_000))

    assert "2 h 1 min" in admin_client.get(list_of(QUEUE)).content.decode()


def test_a_queue_too_deep_to_count_is_shown_by_its_last_sample(admin_client, monkeypatch):
    monkeypatch.setattr(dashboard, "MOST_COUNTED", 3)
    QueueFactory(name="mail")
    for _ in range(5):
        JobFactory(queue="mail")

    assert "≥ 3" in admin_client.get(list_of(QUEUE)).content.decode()
    rollup.sample()
    JobFactory(queue="mail")
    assert "≈ 5" in admin_client.get(list_of(QUEUE)).content.decode()


def test_so_are_active_jobs_where_there_are_too_many_to_count(monkeypatch):
    for name, jobs in (("mail", 2), ("other", 3)):
        QueueFactory(name=name)
        JobFactory.create_batch(jobs, queue=name, active=True)
    assert dashboard.depths(["mail"])["mail"].shown(State.ACTIVE) == "2"

    rollup.sample()
    Job.objects.filter(queue="mail").first().delete()
    monkeypatch.setattr(dashboard, "MOST_ACTIVE_COUNTED", 2)

    # Three of four are counted, of whichever queue: the number can only be that of the sample.
    assert dashboard.depths(["mail"])["mail"].shown(State.ACTIVE) == "≈ 2"


@pytest.mark.parametrize("count", [1, 100])
def test_the_list_takes_the_same_queries_for_one_queue_and_for_a_hundred(
    admin_client, django_assert_num_queries, count
):
    for number in range(count):
        QueueFactory(name=f"queue-{number}")
        JobFactory(queue=f"queue-{number}")

    # Session, user, capped count, page of queues, their depths, maintenance, the reaper.
    with django_assert_num_queries(7):
        page = admin_client.get(list_of(QUEUE))

    assert len(page.context["cl"].result_list) == count


def rows_of(page):
    """The cells of each row of the table of queues, its heading included."""
    table = page.content.decode().split('<caption id="ojs-chosen"')[1].split("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in table.split("<tr>")[1:]]
    return [[" ".join(strip_tags(cell).split()) for cell in row] for row in rows]


def purge_of(client, *queues):
    return rows_of(choose(client, QUEUE, "purge", *queues))


@pytest.mark.parametrize("others", [0, 20])
def test_a_purge_tells_of_every_job_that_would_go(admin_client, django_assert_num_queries, others):
    mail, empty = QueueFactory(name="mail"), QueueFactory(name="empty")
    for state in State:
        JobFactory(queue="mail", **{} if state == State.AVAILABLE else {state: True})
    JobFactory.create_batch(3, queue="mail", pending=True)
    JobFactory(queue="other", scheduled=True)
    more = [QueueFactory(name=f"other-{number:02}") for number in range(others)]

    # Session, user, three of the list, the queues, what would go, maintenance, the reaper.
    with django_assert_num_queries(9):
        heading, *rows = purge_of(admin_client, empty, mail, *more)

    assert heading == ["Queue", "State", "Jobs", "Scheduled", "Available", "Pending", "Retryable"]
    assert rows[:2] == [
        ["empty", "active", "0", "0", "0", "0", "0"],
        ["mail", "active", "7", "1", "1", "4", "1"],
    ]


def test_a_purge_that_takes_more_than_one_says_so(admin_client, monkeypatch):
    monkeypatch.setattr(queue_admin, "PURGED_AT_ONCE", 2)
    mail = QueueFactory(name="mail")
    JobFactory.create_batch(2, queue="mail", scheduled=True)
    JobFactory.create_batch(3, queue="mail")

    assert purge_of(admin_client, mail)[1] == ["mail", "active", "≥ 4", "2", "≥ 2", "0", "0"]


def test_a_pause_tells_of_the_jobs_that_would_wait_and_of_those_that_go_on(admin_client):
    JobFactory(queue="mail", active=True)
    JobFactory.create_batch(2, queue="mail")

    heading, row = rows_of(choose(admin_client, QUEUE, "pause", QueueFactory(name="mail")))

    assert heading == ["Queue", "State", "Available", "Active"]
    assert row == ["mail", "active", "2", "1"]


def test_a_queue_is_paused_with_a_reason_and_resumed(api):
    ops = staff("change_queue", "pause_queue")
    queue = QueueFactory(name="mail")
    api.pushed(queue="mail")

    done = confirm(ops, QUEUE, "pause", queue, reason="Provider is down")
    assert messages(done) == ["1 queue is paused: its jobs wait."]
    assert api.fetch("mail") == []
    listed = ops.get(list_of(QUEUE)).content.decode()
    assert "by ops: Provider is down" in listed

    done = confirm(ops, QUEUE, "resume", queue)
    assert messages(done) == ["1 queue hands out jobs again."]
    assert len(api.fetch("mail")) == 1

    entries = LogEntry.objects.order_by("pk").values_list("object_id", "change_message")
    assert list(entries) == [("mail", "Paused. Reason: Provider is down"), ("mail", "Resumed.")]
    assert list(Event.objects.filter(type__startswith="queue.").values_list("type", "data")) == [
        ("queue.paused", {"paused_by": "ops", "reason": "Provider is down"}),
        ("queue.resumed", {"resumed_by": "ops"}),
    ]


def test_who_pauses_a_paused_queue_is_told_what_that_replaces():
    ops = staff("change_queue", "pause_queue", username="ops")
    queue = QueueFactory(name="search")
    confirm(ops, QUEUE, "pause", queue, reason="The disk is full")
    other = staff("change_queue", "pause_queue", username="other")

    page = choose(other, QUEUE, "pause", queue)

    warning = "“search” is paused already, until it is resumed. This replaces that."
    assert warning in page.content.decode()
    assert rows_of(page)[1][1] == "paused by ops: The disk is full"
    answer(other, page, minutes="15")
    assert "is paused already, until 2" in choose(other, QUEUE, "pause", queue).content.decode()


def test_who_pauses_a_running_queue_is_not_warned(admin_client):
    page = choose(admin_client, QUEUE, "pause", QueueFactory(name="search"))

    assert "is paused already" not in page.content.decode()


def test_who_resumes_a_queue_sees_who_paused_it():
    ops = staff("change_queue", "pause_queue")
    queue = QueueFactory(name="search")
    confirm(ops, QUEUE, "pause", queue, reason="The disk is full")

    page = choose(ops, QUEUE, "resume", queue)

    assert rows_of(page)[1][1] == "paused by ops: The disk is full"


def test_a_pause_may_end_by_itself():
    ops = staff("change_queue", "pause_queue")

    confirm(ops, QUEUE, "pause", QueueFactory(), minutes="15")

    queue = Queue.objects.get()
    assert queue.is_paused
    assert timedelta(minutes=14) < queue.paused_until - queue.paused_at <= timedelta(minutes=15)


def test_a_pause_of_no_offered_length_is_asked_about_again():
    ops = staff("change_queue", "pause_queue")
    page = choose(ops, QUEUE, "pause", QueueFactory())

    again = answer(ops, page, minutes="7", reason="Because")

    assert "Select a valid choice" in again.content.decode()
    assert 'value="Because"' in again.content.decode()
    assert not Queue.objects.get().is_paused


def test_a_running_queue_has_nothing_to_resume():
    ops = staff("change_queue", "pause_queue")

    done = confirm(ops, QUEUE, "resume", QueueFactory())

    assert messages(done) == ["Nothing changed: the queue was not paused."]
    assert not LogEntry.objects.exists()


def test_the_list_can_be_narrowed_to_paused_queues(admin_client):
    QueueFactory(name="running")
    QueueFactory(name="paused", paused=True)
    QueueFactory(name="over", paused=True, paused_until=ago(1))

    for state, names in {"paused": ["paused"], "active": ["over", "running"]}.items():
        page = admin_client.get(list_of(QUEUE), {"state": state})
        assert [queue.name for queue in page.context["cl"].result_list] == names


def test_a_queue_page_offers_to_pause_or_to_resume(admin_client):
    running, paused = QueueFactory(name="a.b-1"), QueueFactory(paused=True)

    assert buttons(admin_client.get(page_of(running))) == ["pause", "purge"]
    page = admin_client.get(page_of(paused))
    assert buttons(page) == ["resume", "purge"]
    answer(admin_client, press(admin_client, page, "resume"))
    assert not Queue.objects.get(pk=paused.pk).is_paused


def test_the_concurrency_limit_is_edited_and_nothing_else_is_overwritten(admin_client):
    queue = QueueFactory()
    admin_client.get(page_of(queue))
    Queue.objects.update(paused_at=ago(1), paused_by="somebody else")

    reply = admin_client.post(page_of(queue), {"concurrency": "3", "paused_by": "me"})

    assert reply.status_code == 302
    queue.refresh_from_db()
    assert (queue.concurrency, queue.paused_by) == (3, "somebody else")
    assert LogEntry.objects.get().get_change_message() == "Changed Concurrency."

    admin_client.post(page_of(queue), {"concurrency": ""})
    queue.refresh_from_db()
    assert queue.concurrency is None
