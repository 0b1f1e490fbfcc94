"""Pages of the job list: each begins where the last one ended."""

from __future__ import annotations

import pytest
from django.test.utils import CaptureQueriesContext

from jobs.admin.dead_letter import DeadJobAdmin
from jobs.admin.job import JobAdmin
from jobs.models import Job
from tests.database import connection
from tests.factories import JobFactory, ago, ahead
from tests.operators import list_of

pytestmark = pytest.mark.django_db

JOB, DEAD = "ojs_jobs_job", "ojs_jobs_deadjob"


@pytest.fixture
def pages_of_two(monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    monkeypatch.setattr(DeadJobAdmin, "list_per_page", 2)


def shown(page):
    return [job.pk for job in page.context["cl"].result_list]


def turn(client, page, rel, model=JOB):
    """Follow the link to the next page or the one before."""
    found = page.context["cl"]
    query = found.older_page_query if rel == "next" else found.newer_query
    assert f'rel="{rel}"' in page.content.decode()
    return client.get(list_of(model) + query)


def test_all_pages_together_are_the_list_and_so_they_are_on_the_way_back(
    admin_client, pages_of_two
):
    jobs = [JobFactory().pk for _ in range(5)][::-1]

    first = admin_client.get(list_of(JOB))
    second = turn(admin_client, first, "next")
    third = turn(admin_client, second, "next")
    assert [shown(first), shown(second), shown(third)] == [jobs[:2], jobs[2:4], jobs[4:]]
    assert 'rel="next"' not in third.content.decode()

    back = turn(admin_client, third, "prev")
    assert shown(back) == shown(second)
    assert shown(turn(admin_client, back, "prev")) == shown(first)


def test_jobs_that_come_in_meanwhile_move_nothing(admin_client, pages_of_two):
    jobs = [JobFactory().pk for _ in range(4)][::-1]
    first = admin_client.get(list_of(JOB))
    for _ in range(3):
        JobFactory()

    assert shown(turn(admin_client, first, "next")) == jobs[2:]


def test_the_next_page_keeps_the_filter_and_a_filter_begins_at_the_newest(
    admin_client, pages_of_two
):
    mail = [JobFactory(queue="mail").pk for _ in range(3)][::-1]
    JobFactory(queue="web")

    second = turn(admin_client, admin_client.get(f"{list_of(JOB)}?queue=mail"), "next")

    assert shown(second) == mail[2:]
    assert "older" not in second.context["cl"].get_query_string({"queue": "web"})


@pytest.mark.parametrize("query", ["older=nonsense", "newer=", "p=7", "p=x", "older=1&newer=2"])
def test_an_address_that_leads_nowhere_is_the_newest_page(admin_client, pages_of_two, query):
    newest = [JobFactory().pk for _ in range(3)][::-1][:2]

    assert shown(admin_client.get(f"{list_of(JOB)}?{query}")) == newest


def test_no_page_is_found_by_counting_rows_off(admin_client, pages_of_two):
    for _ in range(5):
        JobFactory()
    first = admin_client.get(list_of(JOB))

    with CaptureQueriesContext(
        connection,
    ) as queries:
        turn(admin_client, first, "next")

    assert not [query for query in queries if " OFFSET " in query["sql"]]


def test_an_action_on_a_later_page_is_about_what_was_ticked_there(admin_client, pages_of_two):
    jobs = [JobFactory().pk for _ in range(4)]
    second = turn(admin_client, admin_client.get(list_of(JOB)), "next")
    address = list_of(JOB) + f"?{second.request['QUERY_STRING']}"

    ticked = {"action": "cancel", "index": "0", "_selected_action": shown(second)}
    page = admin_client.post(address, ticked)

    assert {job.pk for job in page.context["objects"]} == set(jobs[:2])
    everything = admin_client.post(address, ticked | {"select_across": "1"})
    assert len(everything.context["objects"]) == Job.objects.count()


def test_the_dead_letter_goes_on_where_its_page_ended(admin_client, pages_of_two):
    together = ago(50)
    dead = [JobFactory(dead=True, finished_at=together).pk for _ in range(3)][::-1]
    oldest = JobFactory(dead=True, finished_at=ago(90)).pk

    first = admin_client.get(list_of(DEAD))
    for _ in range(3):
        JobFactory(dead=True)
    Job.objects.filter(pk=dead[1]).delete()  # retried or discarded meanwhile
    with CaptureQueriesContext(connection) as queries:
        second = turn(admin_client, first, "next", DEAD)

    assert [shown(first), shown(second)] == [dead[:2], [dead[2], oldest]]
    assert not [query for query in queries if " OFFSET " in query["sql"]]
    assert shown(turn(admin_client, second, "prev", DEAD))[-1] == dead[0]


@pytest.mark.parametrize(
    "key", ["nonsense", "~", "2026-01-01T00:00~x", "2026-01-01T00:00:00~" + "0" * 36]
)
def test_a_key_that_is_none_is_the_newest_page_of_the_dead_letter(admin_client, pages_of_two, key):
    dead = [JobFactory(dead=True).pk for _ in range(3)][::-1]

    assert shown(admin_client.get(list_of(DEAD), {"older": key})) == dead[:2]


@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_jobs_that_become_due_are_listed_by_when_and_their_pages_too(
    admin_client, pages_of_two, state
):
    moments = [ahead(seconds) for seconds in (400, 100, 300, 200, 200)]
    jobs = [JobFactory(state=state, scheduled_at=moment) for moment in moments]
    JobFactory(state="retryable" if state == "scheduled" else "scheduled", scheduled_at=ahead(50))
    wanted = [job.pk for job in sorted(jobs, key=lambda job: (job.scheduled_at, job.pk))]

    first = admin_client.get(list_of(JOB), {"state": state})
    second = turn(admin_client, first, "next")
    third = turn(admin_client, second, "next")
    back = turn(admin_client, third, "prev")

    assert [shown(first), shown(second), shown(third)] == [wanted[:2], wanted[2:4], wanted[4:]]
    assert shown(back) == shown(second)
    assert shown(turn(admin_client, back, "prev")) == shown(first)
    page = second.content.decode()
    assert jobs[2].scheduled_at.isoformat() in page
    assert "later ›" in page
    assert "older ›" not in page
