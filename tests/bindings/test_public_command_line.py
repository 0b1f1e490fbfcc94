"""What the public command line sends, in its words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import Job, OperatorAction
from tests.factories import JobFactory, ago
from tests.ojs_client import refusal

pytestmark = pytest.mark.django_db

WEEK = timedelta(days=7).total_seconds()


def old_and_new(**kind):
    return [JobFactory(finished_at=ago(age), **kind) for age in (WEEK + 60, WEEK - 60)]


def left() -> set[str]:
    return {str(pk) for pk in Job.objects.values_list("pk", flat=True)}


def test_the_old_part_of_the_dead_letter_is_purged(api):
    _, new = old_and_new(dead=True)

    reply = api.send("dead-letter/purge?older_than=7d", {"confirm": True})

    assert reply.status_code == 200, reply.content
    assert (reply.json()["deleted"], reply.json()["purged_count"]) == (1, 1)
    assert left() == {str(new.pk)}
    assert OperatorAction.objects.get().verb == "discard_job"


def test_a_purge_of_the_dead_letter_is_confirmed_at_either_address(api):
    JobFactory(dead=True)

    error = refusal(api.send("dead-letter/purge?older_than=7d"))

    assert error["details"]["field"] == "confirm"
    assert len(left()) == 1


@pytest.mark.parametrize("age", ["7", "d", "-7d", "7y", "999999999w"])
def test_an_age_that_is_none_deletes_nothing(api, age):
    old_and_new(dead=True)

    error = refusal(api.send(f"dead-letter/purge?older_than={age}", {"confirm": True}))

    assert error["details"]["field"] == "older_than"
    assert len(left()) == 2


def test_a_queue_is_purged_by_post(api):
    JobFactory(queue="email", completed=True)
    waiting = api.pushed(queue="email")
    body = {"states": ["completed"]}
    assert refusal(api.send("queues/email/purge", body))["details"]["field"] == "confirm"

    reply = api.send("queues/email/purge", body | {"confirm": True})

    assert (reply.status_code, reply.json()["deleted"]) == (200, 1)
    assert left() == {waiting}
    assert OperatorAction.objects.get().verb == "purge_queue"


def test_finished_jobs_are_deleted_by_age(api):
    _, new = old_and_new(completed=True)
    wanted = {"state": "completed", "older_than": "7d"}

    reply = api.send("jobs/bulk/delete", {"filter": wanted})

    assert (reply.status_code, reply.json()["deleted"]) == (200, 1)
    assert left() == {str(new.pk)}
