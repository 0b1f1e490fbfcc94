"""Cron: each occurrence runs when it is due, once, by the overlap policy (OJS cron)."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from django.db import OperationalError

from jobs import engine
from jobs.crontab import Declared
from jobs.models import CronJob, CronRun, Event, Job, OperatorAction
from jobs.spec.identifiers import first_id
from jobs.spec.lifecycle import State
from jobs.store.database import connection
from tests.factories import JobFactory, ago, ahead
from tests.ojs_client import refusal

pytestmark = pytest.mark.django_db


def register(api, **fields):
    body = {"name": "report", "cron": "0 9 * * *", "type": "report.make", "args": [1]} | fields
    reply = api.send("cron", body)
    assert reply.status_code in (200, 201), reply.content
    return reply.json()["cron_job"]


def make_due(name="report", seconds=1):
    """Let time pass: the next run of the cron job was `seconds` ago."""
    CronJob.objects.filter(pk=name).update(
        next_run_at=ago(seconds), anchored_at=ago(seconds + 3600)
    )


def tick(name="report"):
    make_due(name)
    return engine.enqueue_due_schedules()


def states():
    return [str(job.state) for job in Job.objects.order_by("pk")]


def skipped():
    return [event.data["reason"] for event in Event.objects.filter(type="cron.skipped")]


def test_a_registration_is_answered_with_the_fields_of_every_document(api):
    body = {"name": "report", "cron": "0 9 * * *", "timezone": "Asia/Tokyo"}
    body |= {"type": "report.make", "args": [1], "options": {"queue": "reports"}}
    body |= {"description": "Every morning"}

    reply = api.send("cron", body)

    document = reply.json()["cron_job"]
    assert reply.status_code == 201 and reply.headers["Location"].endswith("/cron/report")
    assert reply.json()["cron"] == document
    for name, value in body.items():
        assert document[name] == value
    assert document["expression"] == document["schedule"] == "0 9 * * *"
    assert (document["queue"], document["overlap_policy"]) == ("reports", "skip")
    assert (document["enabled"], document["status"]) == (True, "active")
    assert (document["last_run_at"], document["run_count"]) == (None, 0)
    assert document["next_run_at"].endswith("T00:00:00.000Z"), "nine o'clock in Tokyo"


def test_the_form_of_the_cases_and_of_the_command_line_is_accepted_too(api):
    reply = api.send(
        "cron",
        {
            "name": "x",
            "expression": "@hourly",
            "job_template": {"type": "a.b", "args": [2], "options": {"queue": "q"}},
        },
    )

    assert reply.status_code == 201
    document = reply.json()["cron"]
    assert (document["type"], document["args"], document["queue"]) == ("a.b", [2], "q")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"name": "Report"}, "name"),
        ({"name": "-x"}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"cron": None}, "cron"),
        ({"cron": 5}, "cron"),
        ({"cron": "99 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": None, "expression": "x"}, "expression"),
        ({"timezone": "+05:00"}, "timezone"),
        ({"timezone": "EST"}, "timezone"),
        ({"timezone": 5}, "timezone"),
        ({"timezone": ""}, "timezone"),
        ({"type": None}, "type"),
        ({"type": "no good"}, "type"),
        ({"args": {"a": 1}}, "args"),
        ({"options": []}, "options"),
        ({"options": {"queue": "A B"}}, "queue"),
        ({"options": {"retry": {"max_attempts": -1}}}, "retry.max_attempts"),
        ({"options": {"expires_at": "2020-01-01T00:00:00Z"}}, "options.expires_at"),
        ({"overlap_policy": "maybe"}, "overlap_policy"),
        ({"enabled": "yes"}, "enabled"),
        ({"description": 5}, "description"),
    ],
)
def test_a_bad_registration_is_refused_and_the_field_is_named(api, change, field):
    body = {"name": "report", "cron": "@daily", "type": "report.make", "args": []} | change

    reply = api.send("cron", body)

    assert reply.status_code in (400, 422)
    assert refusal(reply)["details"]["field"] == field
    assert not CronJob.objects.exists()


def test_what_is_wrong_with_the_job_of_a_registration_stands_in_its_template(api):
    template = {"type": "a.b", "options": {"queue": "A B"}}

    reply = api.send("cron", {"name": "x", "cron": "@hourly", "job_template": template})

    details = refusal(reply)["details"]
    assert details["field"] == "job_template.queue"
    assert details["validation_errors"][0]["path"] == "$.job_template.options.queue"


def test_a_schedule_of_the_code_may_have_expired_as_it_is_registered_at_every_start():
    long_ago = {"expires_at": "2020-01-01T00:00:00Z"}

    new = Declared("report.make", "@daily", "report", options=long_ago).read()

    assert long_ago.items() <= new.template["options"].items()


@pytest.mark.parametrize(
    "template",
    [{"options": {"priority": "HIGH", "timeout": 5}}, {"priority": "HIGH", "timeout": 5}],
)
def test_a_priority_is_shown_as_the_number_of_its_jobs(api, template):
    """The options of a template may be beside its type, too, as those of any job."""
    template = {"type": "a.b"} | template
    registered = register(api, name="x", type=None, args=None, job_template=template)

    tick("x")

    shown = registered["job_template"] | registered["options"]
    assert (shown["priority"], shown["timeout"]) == (10, 5)
    job = Job.objects.get()
    assert (job.priority, job.timeout) == (10, timedelta(seconds=5))


def test_registering_again_updates_and_keeps_the_next_run_of_what_has_not_changed(api):
    first = register(api, cron="@every 24h")
    again = register(api, cron="@every 24h", args=[2])
    changed = register(api, cron="@every 2h", args=[2])

    assert again["next_run_at"] == first["next_run_at"], "a daily deployment must not starve it"
    assert again["args"] == [2]
    assert changed["next_run_at"] < first["next_run_at"]
    assert CronJob.objects.count() == 1


def test_what_the_server_manages_is_not_the_clients_to_say(api):
    document = register(api, run_count=7, last_run_at="2020-01-01T00:00:00Z", next_run_at=None)

    assert (document["run_count"], document["last_run_at"]) == (0, None)
    assert document["next_run_at"]


def test_they_are_listed_shown_disabled_enabled_and_removed(api):
    register(api, name="a")
    register(api, name="b", enabled=False)

    everything = api.see("cron").json()
    assert [cron["name"] for cron in everything["cron_jobs"]] == ["a", "b"]
    assert everything["crons"] == everything["items"] == everything["cron_jobs"]
    assert [c["name"] for c in api.see("cron", enabled="false").json()["crons"]] == ["b"]
    assert api.see("cron/b").json()["cron_job"]["next_run_at"] is None

    patched = api.patch("/ojs/v1/cron/b", {"enabled": True}, content_type="application/json")
    assert patched.json()["cron_job"]["next_run_at"] is not None
    assert api.send("cron/b/pause").json()["cron_job"]["enabled"] is False
    assert OperatorAction.objects.first().verb == "disable_cron"
    removed = api.delete("/ojs/v1/cron/a").json()
    assert (removed["deleted"], removed["name"]) == (True, "a")
    for reply in (api.delete("/ojs/v1/cron/a"), api.see("cron/a"), api.send("cron/a/trigger")):
        assert reply.status_code == 404 and refusal(reply)["code"] == "not_found"


def test_a_due_schedule_enqueues_its_job_once_and_says_so(api):
    register(api, meta={"team": "x"}, options={"queue": "reports", "tags": ["t"]})

    assert tick() == 1
    assert engine.enqueue_due_schedules() == 0

    (job,) = api.fetch("reports")
    assert (job["type"], job["args"], job["tags"]) == ("report.make", [1], ["t"])
    assert job["meta"]["team"] == "x" and job["meta"]["cron_name"] == "report"
    assert job["meta"]["cron_triggered_at"] < job["created_at"]
    cron = api.see("cron/report").json()["cron_job"]
    assert (
        cron["run_count"] == 1 and cron["last_run_at"] and cron["next_run_at"] > job["created_at"]
    )
    event = Event.objects.get(type="cron.triggered")
    assert event.subject == "report" and event.data["job_id"] == job["id"]
    assert event.data["run_count"] == 1


def test_what_was_missed_is_caught_up_by_one_run(api):
    register(api, cron="* * * * *")
    make_due(seconds=3600)
    before = ago(0)

    assert engine.enqueue_due_schedules() == 1

    assert Job.objects.count() == 1
    assert CronJob.objects.get().next_run_at > before


def test_an_interval_keeps_its_rhythm(api):
    register(api, cron="@every 1h")
    due = ago(600)
    CronJob.objects.update(next_run_at=due, anchored_at=due - timedelta(hours=1))

    engine.enqueue_due_schedules()

    assert CronJob.objects.get().next_run_at == due + timedelta(hours=1)


def test_a_disabled_schedule_does_not_run(api):
    register(api)
    api.send("cron/report/pause")

    assert engine.enqueue_due_schedules() == 0
    assert not Job.objects.exists()


def test_skip_leaves_out_what_is_due_while_an_earlier_run_is_executed(api):
    register(api, options={"queue": "reports"})
    tick()
    (job,) = api.fetch("reports", worker_id="w")

    tick()

    assert states() == ["active"]
    assert skipped() == ["overlap_skip"]
    assert CronJob.objects.get().run_count == 1
    assert Event.objects.get(type="cron.skipped").data["active_job_id"] == job["id"]
    api.ack(job["id"], worker_id="w")
    tick()
    assert states() == ["completed", "available"]


def test_skip_leaves_out_what_would_be_executed_beside_a_run_that_still_waits(api):
    register(api)
    tick()

    tick()

    assert states() == ["available"]


def test_skip_knows_of_the_run_of_a_registration_that_was_deleted_and_made_again(api):
    register(api)
    tick()
    api.delete("/ojs/v1/cron/report")
    register(api)

    tick()

    assert states() == ["available"]


def test_allow_runs_whatever_else_is_executed(api):
    register(api, overlap_policy="allow")
    for _ in range(3):
        tick()

    assert states() == ["available"] * 3


def test_cancel_previous_cancels_the_run_being_executed_and_starts_anew(api):
    register(api, overlap_policy="cancel_previous", options={"queue": "reports"})
    tick()
    (job,) = api.fetch("reports", worker_id="w")

    tick()

    assert states() == ["cancelled", "available"]
    assert Event.objects.filter(type="job.cancelled", subject=job["id"]).exists()
    assert api.ack(job["id"], worker_id="w").status_code == 409


def test_enqueue_keeps_every_run_and_lets_no_two_be_executed_at_once(api):
    register(api, overlap_policy="enqueue", options={"queue": "reports"})
    for _ in range(3):
        tick()
    done = []

    for _ in range(3):
        engine.enqueue_due_schedules()
        jobs = api.fetch("reports", count=10, worker_id="w")
        assert len(jobs) == 1, "one at a time"
        done.append(jobs[0]["id"])
        engine.enqueue_due_schedules()
        assert api.fetch("reports", count=10) == []
        api.ack(jobs[0]["id"], worker_id="w")

    assert states() == ["completed"] * 3
    assert done == sorted(done), "in the order in which they were due"


def one_after_another(api, count: int) -> list[UUID]:
    """Let each of so many runs begin and finish; return their jobs, in this order."""
    done = []
    for _ in range(count):
        engine.enqueue_due_schedules()
        (job,) = api.fetch("reports", count=10, worker_id="w")
        api.ack(job["id"], worker_id="w")
        done.append(UUID(job["id"]))
    return done


def test_the_oldest_held_run_begins_however_many_are_held(api, monkeypatch):
    monkeypatch.setattr("jobs.engine.cron_runs.MOST_OPEN", 2)
    register(api, overlap_policy="enqueue", options={"queue": "reports"})
    for _ in range(6):
        tick()
    due = list(CronRun.objects.order_by("id").values_list("job_id", flat=True))

    assert one_after_another(api, 6) == due


def test_held_runs_begin_in_the_order_of_their_runs_whatever_the_clocks_of_the_servers(api):
    register(api, overlap_policy="enqueue", options={"queue": "reports"})
    for _ in range(3):
        tick()
    # As if the second run had been enqueued by a server whose clock is fast.
    _, fast, _ = CronRun.objects.order_by("id")
    its_id = first_id(ahead(7200))
    Job.objects.filter(pk=fast.job_id).update(id=its_id)
    CronRun.objects.filter(pk=fast.pk).update(job_id=its_id)

    due = CronRun.objects.order_by("id").values_list("job_id", flat=True)
    assert one_after_another(api, 3) == list(due)


def test_a_run_that_was_not_released_when_the_one_before_it_finished_is_released_later(api):
    register(api, overlap_policy="enqueue", options={"queue": "reports"})
    tick()
    tick()
    Job.objects.filter(state=State.AVAILABLE).delete()

    engine.enqueue_due_schedules()

    assert states() == ["available"]


def test_a_held_run_does_not_wait_for_those_of_very_many_other_cron_jobs(api):
    runs = [(JobFactory(active=True), False), (JobFactory(pending=True), True)]
    CronRun.objects.bulk_create(
        CronRun(
            cron_name=f"a{number}",
            job_id=job.pk,
            scheduled_for=ago(60),
            outcome="triggered",
            unfinished=True,
            held=held,
        )
        for number in range(150)
        for job, held in runs
    )
    register(api, overlap_policy="enqueue")
    tick()
    tick()
    mine = CronRun.objects.filter(cron_name="report").order_by("id")
    engine.cancel(mine[0].job_id)

    engine.enqueue_due_schedules()

    assert [run.held for run in mine] == [False, False]
    assert Job.objects.get(pk=mine[1].job_id).state == State.AVAILABLE


def test_skip_heeds_an_old_run_that_is_executed_beside_many_that_have_finished(api, monkeypatch):
    monkeypatch.setattr("jobs.engine.cron_runs.MOST_OPEN", 2)
    register(api, overlap_policy="allow")
    for _ in range(4):
        tick()
    for run in CronRun.objects.order_by("id")[1:]:
        engine.cancel(run.job_id)
    register(api, overlap_policy="skip")

    tick()

    assert skipped() == ["overlap_skip"]


def test_a_delay_of_a_held_run_begins_when_the_earlier_run_has_finished(api):
    register(api, overlap_policy="enqueue", options={"scheduled_at": "+PT1H"})
    tick()
    tick()
    assert states() == ["scheduled", "pending"]
    Job.objects.update(scheduled_at=ago(1))
    (job,) = api.fetch("default", worker_id="w")

    api.ack(job["id"], worker_id="w")
    engine.enqueue_due_schedules()

    assert states() == ["completed", "scheduled"]
    assert Job.objects.get(state="scheduled").scheduled_at > ahead(3000)
    assert api.fetch("default", worker_id="w") == []


def test_a_template_that_is_refused_when_it_is_due_stops_no_other_schedule(api):
    register(api, name="a")
    register(api, name="b")
    CronJob.objects.filter(pk="a").update(template={"type": "no good", "args": []})
    make_due("a", 5)
    make_due("b")

    assert engine.enqueue_due_schedules() == 2

    assert [job.meta["cron_name"] for job in Job.objects.all()] == ["b"]
    run = CronRun.objects.get(cron_name="a")
    assert run.outcome == "refused" and "type" in run.reason
    assert skipped() == ["refused"]
    assert CronJob.objects.get(pk="a").next_run_at > ago(0)


DEEP: list = []
for _ in range(500):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "template",
    [
        # The store for SQLite writes both.
        pytest.param({"type": "t", "args": [10**20]}, marks=pytest.mark.postgres, id="large"),
        pytest.param({"type": "t", "args": DEEP}, marks=pytest.mark.postgres, id="deep"),
        pytest.param({"type": "t", "args": 1}, id="no array"),
        pytest.param({}, id="empty"),
        pytest.param(1, id="no object"),
    ],
)
def test_a_template_that_no_job_can_be_made_of_stops_no_other_schedule(api, template, caplog):
    register(api, name="a", cron="@every 2s")
    register(api, name="b")
    CronJob.objects.filter(pk="a").update(template=template)
    for _ in range(2):
        make_due("a", 5)
        make_due("b")

        assert engine.enqueue_due_schedules() == 2

        assert engine.enqueue_due_schedules() == 0, "it is not tried again at once"
        for job in Job.objects.filter(state=State.AVAILABLE):
            engine.cancel(job.pk)

    assert [job.meta["cron_name"] for job in Job.objects.all()] == ["b", "b"]
    assert list(CronRun.objects.filter(cron_name="a").values_list("outcome", flat=True)) == [
        "refused",
        "refused",
    ]
    assert CronJob.objects.get(pk="a").next_run_at > ago(0)
    told = [line.getMessage() for line in caplog.records if line.name == "jobs.cron"]
    assert len(told) == (0 if template in ({"type": "t", "args": 1}, {}, 1) else 1)
    assert all("Cron job a" in text for text in told)


@pytest.mark.postgres
def test_a_template_that_no_job_can_be_made_of_is_refused_by_hand_too(api):
    register(api)
    CronJob.objects.update(template={"type": "t", "args": [10**20]})

    reply = api.send("cron/report/trigger")

    assert (reply.status_code, reply.json()["outcome"]) == (200, "refused")
    assert reply.json()["reason"] == "An unexpected TypeError; the server's log says more."


def refuse_jobs_of(type, error):
    """Make the database refuse jobs of a type with this error."""
    with connection().cursor() as cursor:
        if connection().vendor == "sqlite":
            cursor.execute(
                f"CREATE TRIGGER picky BEFORE INSERT ON ojs_jobs_job WHEN NEW.type = '{type}' "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            return
        cursor.execute(
            f"CREATE FUNCTION picky() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.type = '{type}' THEN RAISE 'no' USING ERRCODE = '{error}'; END IF; "
            "RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER picky BEFORE INSERT ON ojs_jobs_job "
            "FOR EACH ROW EXECUTE FUNCTION picky()"
        )


def test_a_job_that_the_database_refuses_stops_no_other_schedule(api):
    register(api, name="a", type="bad.job")
    register(api, name="b")
    refuse_jobs_of("bad.job", "22000")
    make_due("a", 5)
    make_due("b")

    assert engine.enqueue_due_schedules() == 2

    assert [job.meta["cron_name"] for job in Job.objects.all()] == ["b"]
    assert CronRun.objects.get(cron_name="a").outcome == "refused"
    assert CronJob.objects.get(pk="a").next_run_at > ago(0)


@pytest.mark.postgres
def test_a_schedule_whose_statement_was_chosen_by_a_deadlock_stays_due_and_stops_no_other(api):
    register(api, name="a", type="bad.job")
    register(api, name="b")
    refuse_jobs_of("bad.job", "40P01")
    make_due("a", 5)
    make_due("b")

    with pytest.raises(OperationalError) as raised:
        engine.enqueue_due_schedules()

    assert raised.value.__notes__ == ["Cron job a"]
    assert [job.meta["cron_name"] for job in Job.objects.all()] == ["b"]
    assert CronJob.objects.due().get().pk == "a"
    assert not CronRun.objects.filter(cron_name="a").exists()


def test_a_schedule_whose_time_zone_is_unknown_stays_due_and_stops_no_other(api):
    register(api, name="a")
    register(api, name="b")
    CronJob.objects.filter(pk="a").update(timezone="Mars/Olympus")
    make_due("a", 5)
    make_due("b")

    assert engine.enqueue_due_schedules() == 1

    assert CronRun.objects.get().cron_name == "b"
    assert CronJob.objects.due().get().pk == "a", "another process may know it"
    CronJob.objects.filter(pk="a").update(timezone="UTC")
    assert engine.enqueue_due_schedules() == 1
    assert CronRun.objects.get(cron_name="a").outcome == "triggered"


def test_schedules_of_unknown_time_zones_do_not_fill_the_batch(api, monkeypatch):
    monkeypatch.setattr("jobs.engine.cron.BATCH_SIZE", 2)
    for name in ("a", "b", "c", "d", "e"):
        register(api, name=name)
        make_due(name, 60 if name > "d" else 600)
    CronJob.objects.exclude(pk="e").update(timezone="Mars/Olympus")

    engine.enqueue_due_schedules()

    assert CronRun.objects.get(outcome="triggered").cron_name == "e"


def test_a_run_that_no_process_could_decide_for_a_minute_is_recorded_once(api):
    register(api)
    CronJob.objects.update(timezone="Mars/Olympus")
    make_due(seconds=90)

    assert [engine.enqueue_due_schedules() for _ in range(3)] == [1, 0, 0]

    run = CronRun.objects.get()
    assert run.outcome == "refused" and "Mars/Olympus" in run.reason
    event = Event.objects.get(type="cron.skipped")
    assert (event.data["reason"], event.data["message"]) == ("refused", run.reason)
    assert CronJob.objects.due().exists()


def enable(api):
    return api.patch("/ojs/v1/cron/report", {"enabled": True}, content_type="application/json")


STOPPED = {"name": "report", "cron": "0 9 * * *", "type": "report.make", "args": [1]}


@pytest.mark.parametrize(
    "revive",
    [
        pytest.param(lambda api: api.send("cron", STOPPED), id="registered again"),
        pytest.param(lambda api: api.send("cron/report/resume"), id="resumed"),
        pytest.param(enable, id="enabled"),
    ],
)
def test_an_enabled_schedule_without_a_next_run_gets_one(api, revive):
    register(api)
    CronJob.objects.update(next_run_at=None)

    reply = revive(api)

    assert reply.status_code == 200
    assert reply.json()["cron_job"]["next_run_at"] is not None


def test_a_schedule_whose_time_zone_is_unknown_cannot_be_enabled(api):
    register(api, enabled=False)
    CronJob.objects.update(timezone="Mars/Olympus")

    for reply in (api.send("cron/report/resume"), enable(api)):
        assert reply.status_code == 400
        assert refusal(reply)["details"]["field"] == "timezone"
    assert not CronJob.objects.get().enabled


def test_a_time_that_the_clocks_skipped_is_recorded(api):
    register(api, cron="30 2 * * *", timezone="America/New_York")
    CronJob.objects.update(anchored_at="2026-03-07T12:00:00Z", next_run_at="2026-03-09T06:30:00Z")

    engine.enqueue_due_schedules()

    event = Event.objects.get(type="cron.skipped")
    assert (event.data["reason"], event.data["count"]) == ("dst_skip", 1)
    assert event.data["scheduled_time"] == "2026-03-08T07:30:00.000Z"


def test_run_now_runs_besides_the_schedule_and_obeys_the_overlap_policy(api):
    before = register(api)

    first = api.send("cron/report/trigger")
    second = api.send("cron/report/trigger")
    actions = OperatorAction.objects.values_list("verb", "source", "selection")
    about = ("api", {"ids": ["report"]})
    assert list(actions.order_by("pk")) == [("add_cron", *about)] + [("run_now_cron", *about)] * 2

    assert first.status_code == 201 and Job.objects.get().pk == UUID(first.json()["job_id"])
    assert (second.status_code, second.json()["outcome"]) == (200, "skipped")
    assert api.see("cron/report").json()["cron_job"]["next_run_at"] == before["next_run_at"]
    runs = api.see("cron/report/history").json()["runs"]
    assert [run["outcome"] for run in runs] == ["skipped", "triggered"]


def test_a_template_may_delay_its_jobs(api):
    register(api, options={"scheduled_at": "+PT1H"})

    tick()

    job = Job.objects.get()
    assert job.state == State.SCHEDULED and job.scheduled_at > ahead(3500)
