"""Fleet in the admin: the workers and their condition."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from jobs import engine
from jobs.admin import filters
from jobs.conf import protocol_of
from jobs.models import OperatorAction, RefusedFinish
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory, ago, ahead
from tests.operators import buttons, choose, confirm, list_of, messages, operator, staff
from workers.chores import reaper
from workers.models import Reaper, Worker

pytestmark = pytest.mark.django_db

WORKER = "ojs_workers_worker"


def page_of(worker):
    return reverse("admin:ojs_workers_worker_change", args=[quote(worker.pk)])


def listed(client, **query):
    """The workers that the list shows."""
    rows = client.get(list_of(WORKER), query).context["cl"].result_list
    return [worker.pk for worker in rows]


def condition_of(client, worker):
    rows = client.get(list_of(WORKER)).context["cl"].result_list
    return next(row.condition for row in rows if row.pk == worker.pk)


@pytest.mark.parametrize(
    ("by", "names"), [("host", ["host-1", "host-2"]), ("label", ["eu", "gpu"])]
)
def test_groups_add_up_workers_that_are_alike_and_others(admin_client, by, names):
    figures = {"concurrency": 4, "jobs_done": 5, "jobs_failed": 1}
    alike = WorkerFactory.create_batch(2, labels=["eu", "gpu"], **figures)
    WorkerFactory(labels=["eu"], state="quiet", concurrency=1, jobs_done=7)
    WorkerFactory(hostname="host-2", labels=["gpu"], concurrency=1)
    for worker in alike:
        JobFactory.create_batch(2, active=True, reserved_by=worker.pk)

    groups = admin_client.get(list_of(WORKER), {"group": by}).context["groups"]

    read = ("workers", "running", "capacity", "busy", "done", "failed")
    found = {group.name: tuple(getattr(group, name) for name in read) for group in groups}
    quieted, other = (1, 0, 1, 0, 7, 0), (1, 1, 1, 0, 0, 0)
    both = (2, 2, 8, 4, 10, 2)
    added = [tuple(map(sum, zip(both, quieted, strict=True)))]
    added.append(other if by == "host" else tuple(map(sum, zip(both, other, strict=True))))
    assert found == dict(zip(names, added, strict=True))


@pytest.mark.parametrize("state", ["running", "quiet", "terminate"])
def test_a_worker_that_is_heard_is_what_it_says_it_is(admin_client, state):
    assert condition_of(admin_client, WorkerFactory(state=state)) == state


@pytest.mark.parametrize(
    ("state", "jobs", "condition"),
    [
        ("running", 0, "silent"),
        ("running", 1, "silent"),
        ("quiet", 1, "silent"),
        ("quiet", 0, "drained"),
        ("terminate", 1, "silent"),
        ("terminate", 0, "drained"),
    ],
)
def test_a_silent_worker_is_drained_if_it_was_quiet_and_idle(admin_client, state, jobs, condition):
    worker = WorkerFactory(silent=True, state=state)
    for _ in range(jobs):
        JobFactory(active=True, reserved_by=worker.pk)

    assert condition_of(admin_client, worker) == condition


@pytest.mark.parametrize(
    ("state", "jobs", "condition"),
    [
        ("running", 0, "dead"),
        ("running", 1, "dead"),
        ("quiet", 1, "dead"),
        ("quiet", 0, "drained"),
        ("terminate", 0, "drained"),
    ],
)
def test_the_reaper_does_not_make_a_drained_worker_a_dead_one(admin_client, state, jobs, condition):
    worker = WorkerFactory(silent=True, state=state)
    for _ in range(jobs):
        JobFactory(active=True, reserved_by=worker.pk)

    reaper.sweep()

    worker.refresh_from_db()
    assert worker.state == "terminated"
    assert condition_of(admin_client, worker) == condition


def test_a_worker_that_left_with_jobs_in_its_hands_was_not_drained(admin_client):
    orderly, hasty = WorkerFactory(left=True), WorkerFactory(left=True)
    JobFactory(active=True, reserved_by=hasty.pk)

    assert condition_of(admin_client, orderly) == "drained"
    assert condition_of(admin_client, hasty) == "left"


def test_a_drained_worker_that_speaks_again_is_running_again(admin_client, api):
    worker = WorkerFactory(silent=True, state="quiet")
    reaper.sweep()

    api.send("workers/heartbeat", {"worker_id": worker.pk, "state": "running"})

    assert condition_of(admin_client, worker) == "running"
    assert Worker.objects.get().left_at is None


@pytest.mark.parametrize(
    "query",
    [
        {"state": "quiet"},
        {"directive": "quiet"},
        {"label": "blue"},
        {"queue": "mail"},
        {"host": "host-7"},
        {"project": "acme"},
        {"q": "EB_1/"},
        {"q": "host-7"},
        {"q": "blue"},
        {"q": "host blue"},
        {"label": "blue", "state": "quiet", "queue": "mail"},
    ],
)
def test_a_worker_is_found_by(admin_client, query):
    wanted = WorkerFactory(
        worker_id="web_1/a",
        hostname="host-7",
        project="acme",
        labels=["blue", "eu"],
        queues=["default", "mail"],
        state="quiet",
        directive="quiet",
    )
    WorkerFactory(labels=["blu"], queues=["mails"], hostname="host-8")
    WorkerFactory(labels=[], queues=[], hostname="")

    assert listed(admin_client, **query) == [wanted.pk]


def test_a_label_is_not_another_that_looks_like_it(admin_client):
    wanted = WorkerFactory(labels=["eu", "blue"])
    WorkerFactory(labels=["BLUE", "blue-2", "dark blue"])

    assert listed(admin_client, label="blue") == [wanted.pk]


def test_labels_with_quotes_and_umlauts_are_filtered_by(admin_client):
    wanted = WorkerFactory(labels=['größe "L"'])
    WorkerFactory(labels=["größe"])

    page = admin_client.get(list_of(WORKER)).content.decode()

    assert "gr%C3%B6%C3%9Fe+%22L%22" in page
    assert listed(admin_client, label='größe "L"') == [wanted.pk]


def test_workers_without_a_directive_are_filtered_by(admin_client):
    WorkerFactory(directive="quiet")
    wanted = WorkerFactory()

    assert listed(admin_client, directive="none") == [wanted.pk]


def test_a_list_of_choices_is_cut_off_but_holds_the_chosen_one(admin_client, monkeypatch):
    monkeypatch.setattr(filters, "CHOICES", 50)
    for number in range(60):
        WorkerFactory(hostname=f"host-{number:02}")

    page = admin_client.get(list_of(WORKER), {"host": "host-59"})

    (hosts,) = [spec for spec in page.context["cl"].filter_specs if spec.title == "host"]
    assert len(hosts.lookup_choices) == 51
    assert ("host-59", "host-59") in hosts.lookup_choices


@pytest.mark.parametrize("count", [1, 100])
def test_the_list_takes_the_same_queries_for_one_worker_and_for_a_hundred(
    admin_client, django_assert_num_queries, count
):
    for _ in range(count):
        JobFactory(active=True, reserved_by=WorkerFactory(labels=["blue"]).pk)

    # Session, user, capped count, page of workers, their descriptions, the reaper.
    with django_assert_num_queries(7):
        page = admin_client.get(list_of(WORKER))

    assert [worker.in_hand for worker in page.context["cl"].result_list] == [1] * count


def test_the_list_tells_what_a_worker_shall_be_until_it_is(admin_client):
    WorkerFactory(state="running", directive="quiet")

    assert "running → " in admin_client.get(list_of(WORKER)).content.decode()


@pytest.mark.parametrize("worker_id", ["web_1", "host/web_1", "a/change/", "_5F", "ä ?&#%", "a\\b"])
def test_a_worker_of_any_name_has_a_page(admin_client, worker_id):
    worker = WorkerFactory(worker_id=worker_id)

    page = admin_client.get(list_of(WORKER))
    assert page_of(worker) in page.content.decode()

    assert admin_client.get(page_of(worker)).context["original"] == worker


def test_the_page_of_a_worker_tells_what_it_holds_and_what_it_lost(admin_client):
    worker = WorkerFactory(worker_id="web_1/a", labels=["blue"], version="ojs-go/1.2", sequence=77)
    other = WorkerFactory(worker_id="web_2")
    held = JobFactory(active=True, reserved_by=worker.pk, type="held.one")
    JobFactory(active=True, reserved_by=other.pk, type="held.other")
    unfenced = JobFactory(completed=True, unfenced=True, finished_by=worker.pk, type="loose.one")
    JobFactory(completed=True, finished_by=worker.pk, type="fenced.one")
    JobFactory(completed=True, unfenced=True, finished_by=other.pk, type="loose.other")
    late = uuid4()
    RefusedFinish.objects.create(
        job_id=late, operation="ack", worker_id=worker.pk, held_by="web_2", state="active"
    )
    RefusedFinish.objects.create(
        job_id=uuid4(), operation="fail", worker_id="web_2", state="active"
    )

    page = admin_client.get(page_of(worker))

    content = page.content.decode()
    assert [job.pk for job in page.context["held"]] == [held.pk]
    assert [refusal.job_id for refusal in page.context["refused"]] == [late]
    assert [job.pk for job in page.context["unfenced"]] == [unfenced.pk]
    for job_id in (held.pk, unfenced.pk, late):
        assert f"/admin/ojs_jobs/job/{job_id}/change/" in content
    assert "/admin/ojs_workers/worker/web_5F2/change/" in content
    assert "&quot;sequence&quot;: 77" in content
    assert "ojs-go/1.2" in content


def test_a_worker_whose_clock_is_ahead_is_marked(admin_client):
    worker = WorkerFactory(started_at=ahead(7290), registered_at=ago(0))

    assert "its clock is ahead by 2 h 1 min" in admin_client.get(page_of(worker)).content.decode()


def test_a_worker_that_came_back_from_the_dead_is_marked(admin_client):
    worker = WorkerFactory(died_at=ago(60))

    assert "it has come back since" in admin_client.get(page_of(worker)).content.decode()


def test_a_worker_cannot_be_edited_added_or_deleted_by_hand(admin_client):
    worker = WorkerFactory()

    assert admin_client.post(page_of(worker), {"state": "terminated"}).status_code == 403
    assert admin_client.post(reverse("admin:ojs_workers_worker_add"), {}).status_code == 403
    delete = reverse("admin:ojs_workers_worker_delete", args=[quote(worker.pk)])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    assert Worker.objects.get().state == "running"


@pytest.mark.parametrize(
    ("state", "directive", "offered"),
    [
        ("running", "", ["quiet", "drain", "terminate"]),
        ("running", "quiet", ["resume", "drain", "terminate"]),
        ("quiet", "quiet", ["resume", "drain", "terminate"]),
        ("quiet", "", ["drain", "terminate"]),
        ("quiet", "running", ["quiet", "drain", "terminate"]),
        ("running", "terminate", []),
        ("terminate", "", []),
        ("terminated", "", []),
    ],
)
def test_a_worker_page_offers_what_its_state_allows(admin_client, state, directive, offered):
    worker = WorkerFactory(state=state, directive=directive)

    assert buttons(admin_client.get(page_of(worker))) == offered


# The reaper


@pytest.mark.parametrize(
    "url",
    [
        "/admin/",
        "/admin/ojs_workers/",
        "/admin/ojs_workers/worker/",
        "/admin/ojs_jobs/",
        "/admin/ojs_jobs/job/",
        "/admin/ojs_jobs/deadjob/",
        "/admin/ojs_jobs/queue/",
        "/admin/ojs_jobs/apikey/",
        "/admin/ojs_jobs/event/",
        "/admin/ojs_jobs/refusedfinish/",
    ],
)
def test_every_page_says_that_the_reaper_does_not_run(admin_client, url):
    notice = "The reaper has never run"
    assert notice in admin_client.get(url).content.decode()

    reaper.sign_of_life("host:1")
    assert "The reaper has" not in admin_client.get(url).content.decode()

    Reaper.objects.update(seen_at=ago(7290))
    assert "The reaper has not run for 2 h 1 min" in admin_client.get(url).content.decode()


def test_a_user_without_permissions_for_jobs_sees_nothing_of_the_reaper():
    assert "The reaper" not in staff().get("/admin/").content.decode()


def test_the_flag_of_a_worker_is_cleared_by_who_may_and_it_is_recorded():
    client = operator()
    flagged, other = WorkerFactory(flagged_at=ago(60)), WorkerFactory()
    assert "unflag" in buttons(client.get(page_of(flagged)))

    done = confirm(client, WORKER, "unflag", flagged, other, reason="it was the disk")

    flagged.refresh_from_db()
    assert flagged.flagged_at is None
    assert "1 worker is no longer flagged." in messages(done)[0]
    action = OperatorAction.objects.get()
    assert (action.verb, action.count, action.reason) == ("unflag_worker", 1, "it was the disk")
    assert action.selection["ids"] == [flagged.pk]
    assert "unflag" not in buttons(client.get(page_of(flagged)))
    refused = choose(staff("view_worker", username="guest"), WORKER, "unflag", flagged)
    assert refused.status_code == 403


def test_the_page_of_a_rota_worker_says_which_specs_are_the_registered_ones(admin_client):
    engine.register_specs({"email.send": "v2"})
    worker = WorkerFactory(protocol="rota", specs={"email.send": "v1", "video.cut": "v1"})

    page = admin_client.get(page_of(worker)).content.decode()

    for words in ("email.send", "✗ v1", "at its next heartbeat"):
        assert words in page


def test_the_page_says_what_an_agq_worker_can_do_and_cannot_hear(admin_client):
    worker = WorkerFactory(
        protocol="agq", capabilities=["jq"], stats={"cpu": 7}, stats_at=ago(5), flagged_at=ago(5)
    )

    page = admin_client.get(reverse("admin:ojs_workers_worker_change", args=[quote(worker.pk)]))

    for words in ("jq", "quiet is enforced at fetch", "cpu", "let a job run past its time"):
        assert words in page.content.decode()


@pytest.mark.parametrize(
    ("described", "can", "hears"),
    [
        ({"protocol": "ojs"}, "any", "at its next heartbeat"),
        ({"protocol": "flare", "job_types": ["a.b"]}, "a.b", "quiet is enforced at fetch"),
        ({"protocol": "rota", "specs": {"a.b": "v7"}}, "a.b (v7)", "at its next heartbeat"),
        ({"protocol": "agq", "capabilities": ["jq"]}, "jq", "quiet is enforced at fetch"),
        ({"protocol": "removed"}, "any", "quiet is enforced at fetch"),
    ],
    ids=["ojs", "flare", "rota", "agq", "removed"],
)
def test_the_page_says_what_a_worker_speaks_can_do_and_hears(admin_client, described, can, hears):
    worker = WorkerFactory(**described)

    page = admin_client.get(reverse("admin:ojs_workers_worker_change", args=[quote(worker.pk)]))

    title = protocol_of(described["protocol"]).title
    for words in (f">{title}<", can, hears):
        assert words in page.content.decode()


def test_a_long_name_of_a_host_leaves_room_for_the_other_columns(admin_client):
    host = "h" * 200
    WorkerFactory(hostname=host, pid=7)

    cell = admin_client.get("/admin/ojs_workers/worker/").content.decode()

    assert f'title="{host}:7">{"h" * 39}…:7<' in cell


def test_the_page_of_a_worker_lists_the_attempts_that_ended_with_it(admin_client):
    worker, other = WorkerFactory(dead=True), WorkerFactory()
    job = JobFactory(type="image.poison", attempt=2)
    for number, died in enumerate((worker, other), start=1):
        JobErrorFactory(job=job, attempt=number, type="worker_death", worker_id=died.pk)
    JobErrorFactory(job=job, attempt=3, type="smtp_down", worker_id=worker.pk)

    page = admin_client.get(page_of(worker))

    (error,) = page.context["lost"]
    assert (error.job, error.attempt) == (job, 1)
    assert "image.poison" in page.content.decode()
