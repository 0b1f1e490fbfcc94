"""What the public command line sends, in its words."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest

from jobs import engine
from jobs.models import CronJob, Job, OperatorAction
from jobs.spec.cron_requests import NewCronJob
from tests.factories import JobFactory, WorkerFactory, ago
from tests.ojs_client import MEDIA_TYPE, refusal
from workers.models import Worker

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


def put(api, path, body):
    return api.put(f"/ojs/v1/{path}", orjson.dumps(body), MEDIA_TYPE)


def test_a_rate_limit_is_overridden_and_restored(api):
    limit = {"key": "mail", "concurrency": 5}
    api.pushed(options={"rate_limit": limit})
    api.fetch()
    path = "rate-limits/mail/override"

    overridden = put(api, path, {"concurrency": 2})
    assert (overridden.status_code, overridden.json()["concurrency"]["limit"]) == (200, 2)
    restored = api.delete(f"/ojs/v1/{path}")

    assert (restored.status_code, restored.json()["concurrency"]["limit"]) == (200, 5)
    assert [action.selection["override"] for action in OperatorAction.objects.order_by("pk")] == [
        {"concurrency": 2},
        {},
    ]


def test_an_override_of_no_rate_limit_cannot_end(api):
    assert api.delete("/ojs/v1/rate-limits/mail/override").status_code == 404

    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    ("directive", "before", "after"),
    [
        ("quiet", "", "quiet"),
        ("resume", "quiet", ""),
        ("terminate", "", "terminate"),
    ],
)
def test_all_workers_get_an_order(api, directive, before, after):
    for name in "ab":
        WorkerFactory(worker_id=name, directive=before)
    order = {"directive": directive}
    path = "admin/workers/directive"
    assert refusal(api.send(path, order))["details"]["field"] == "confirm"

    reply = api.send(path, order | {"confirm": True, "reason": "Release 42"})

    assert (reply.status_code, reply.json()["action"]) == (200, directive)
    assert reply.json()["signalled"] == 2
    assert set(Worker.objects.values_list("directive", flat=True)) == {after}
    action = OperatorAction.objects.get()
    assert (action.count, action.reason, action.selection["all"]) == (2, "Release 42", True)


def test_an_order_may_name_workers(api):
    for name in "ab":
        WorkerFactory(worker_id=name, labels=[name])
    order = {"directive": "quiet", "filter": {"label": "a"}, "confirm": True}

    assert api.send("admin/workers/directive", order).json()["workers"] == ["a"]

    assert Worker.objects.get(worker_id="b").directive == ""


def registered(api, **more):
    template = {
        "type": "report.build",
        "args": ["week"],
        "options": {"queue": "slow", "priority": 3, "timeout_ms": 5000},
    }
    cron = {"name": "report", "expression": "0 9 * * *", "job_template": template}
    reply = api.send("cron", cron | more)
    assert reply.status_code == 201, reply.content
    return reply.json()["cron_job"]


def change(api, **body):
    return api.patch("/ojs/v1/cron/report", orjson.dumps(body), MEDIA_TYPE)


def test_the_schedule_of_a_cron_job_is_changed(api):
    before = registered(api, description="Weekly", timezone="Europe/Berlin")

    reply = change(api, expression="30 10 * * *")

    assert reply.status_code == 200, reply.content
    after = reply.json()["cron_job"]
    assert (after["expression"], after["timezone"]) == ("30 10 * * *", "Europe/Berlin")
    assert after["next_run_at"] != before["next_run_at"]
    changed = ("cron", "expression", "schedule", "next_run_at")
    assert {k: v for k, v in after.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }
    verbs = OperatorAction.objects.order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["add_cron", "change_cron"]


def test_the_job_of_a_cron_job_is_changed_and_what_is_left_out_stays(api):
    before = registered(api)

    changed = {"type": "report.send", "options": {"queue": "mail", "timeout": 9}}
    after = change(api, job_template=changed).json()["cron_job"]

    assert after["job_template"] == {
        "type": "report.send",
        "args": ["week"],
        "options": {"queue": "mail", "priority": 3, "timeout": 9},
    }
    assert after["next_run_at"] == before["next_run_at"]


def test_an_option_beside_the_others_takes_the_place_of_one_among_them(api):
    registered(api)

    after = change(api, job_template={"queue": "mail"}).json()["cron_job"]

    assert after["queue"] == "mail"
    assert "queue" not in after["job_template"]["options"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"expression": "99 9 * * *"}, "expression"),
        ({"cron": "@never"}, "cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"expression": "0 9 * * *", "enabled": "yes"}, "enabled"),
        ({"job_template": {"type": "No Type"}}, "job_template.type"),
        ({"job_template": {"options": {"queue": "NO"}}}, "job_template.queue"),
        ({}, "enabled"),
        ({"expresion": "0 9 * * *"}, "enabled"),
    ],
)
def test_a_change_of_a_cron_job_is_checked_as_its_registration(api, body, field):
    before = registered(api)

    error = refusal(change(api, **body))

    assert error["details"]["field"].removeprefix("$.") == field
    assert api.see("cron/report").json()["cron_job"] == before
    assert OperatorAction.objects.get().verb == "add_cron"


def test_a_cron_job_may_be_changed_and_paused_at_once(api):
    registered(api)

    after = change(api, expression="30 10 * * *", enabled=False).json()["cron_job"]

    assert (after["status"], after["next_run_at"]) == ("paused", None)
    again = change(api, expression="0 10 * * *").json()["cron_job"]
    assert (again["status"], again["next_run_at"]) == ("paused", None)


def test_what_only_the_code_may_say_survives_a_change(api):
    template = {"type": "shop.tasks.SendReport", "args": []}
    engine.register_cron([NewCronJob("report", "0 9 * * *", template)], site="shop")

    reply = change(api, expression="0 10 * * *")
    assert reply.status_code == 200, reply.content

    cron = CronJob.objects.get()
    assert (cron.template, cron.expression, cron.declared_by) == (template, "0 10 * * *", "")


def test_there_is_no_cron_job_to_change(api):
    assert change(api, expression="0 10 * * *").status_code == 404


def test_the_history_of_a_cron_job_is_also_called_executions(api):
    registered(api)
    api.send("cron/report/trigger")

    body = api.see("cron/report/history", limit=10).json()

    assert [run["outcome"] for run in body["executions"]] == ["triggered"]
    assert body["executions"] == body["runs"]


@pytest.mark.parametrize("period", ["24h", "1d", "P1D", 86_400])
def test_one_retention_is_that_of_all_jobs_that_ended(api, period):
    reply = put(api, "admin/queues/email/config", {"retention": period})

    assert reply.status_code == 200, reply.content
    states = ("completed", "discarded", "cancelled")
    assert reply.json()["config"]["retention"] == dict.fromkeys(states, "P1D")


@pytest.mark.parametrize("period", ["24", "-1d", "soon", "999999999w", -1, True, ["24h"]])
def test_a_retention_that_is_no_length_of_time_changes_nothing(api, period):
    put(api, "admin/queues/email/config", {"retention": "1d"})

    error = refusal(put(api, "admin/queues/email/config", {"retention": period}))

    assert error["details"]["field"] == "retention"
    config = api.see("queues/email/config").json()["config"]
    assert set(config["retention"].values()) == {"P1D"}
