"""Operations on queues: pause, configuration, bounds, purge, deletion (OJS HTTP §11)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import orjson
import pytest

from jobs import engine
from jobs.access.audit import of_shell
from jobs.engine import maintenance
from jobs.errors import QueueFull
from jobs.http.authentication import make_key
from jobs.models import Event, Job, Queue, RateLimit
from jobs.producer import enqueue
from jobs.spec.identifiers import uuid7
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago, many_jobs
from tests.ojs_client import V1, OJSClient, refusal

A_JOB = {"type": "email.send", "args": []}


def put(api, path, body):
    return api.put(f"{V1}/{path}", data=orjson.dumps(body), content_type="application/json")


def delete(api, path, body):
    return api.delete(f"{V1}/{path}", data=orjson.dumps(body), content_type="application/json")


def bound(api, queue="mail", **backpressure):
    reply = put(api, f"admin/queues/{queue}/config", {"backpressure": backpressure})
    assert reply.status_code == 200, reply.content


def event_types() -> list[str]:
    return list(Event.objects.order_by("pk").values_list("type", flat=True))


def test_a_full_queue_refuses_with_429_and_stores_nothing(api):
    bound(api, max_depth=2)
    api.pushed(queue="mail")
    api.pushed(queue="mail", scheduled_at="+PT1H")

    reply = api.push(queue="mail")

    assert reply.status_code == 429
    error = reply.json()["error"]
    assert (error["code"], error["retryable"]) == ("QUEUE_FULL", True)
    headers = reply.headers
    assert int(headers["Retry-After"]) > 0
    assert (headers["X-OJS-Queue-Depth"], headers["X-OJS-Queue-Bound"]) == ("2", "2")
    assert Job.objects.count() == 2
    assert Event.objects.filter(type="backpressure.rejected").count() == 1


def test_a_fetched_job_makes_room_for_the_next(api):
    bound(api, max_depth=1)
    api.pushed(queue="mail")
    assert api.push(queue="mail").status_code == 429

    api.fetch("mail")

    assert api.push(queue="mail").status_code == 201


def test_a_batch_that_does_not_fit_is_refused_whole_and_other_queues_with_it(api):
    bound(api, max_depth=2)
    jobs = [{"type": "a", "args": [], "queue": queue} for queue in ("plain", *["mail"] * 3)]

    assert api.send("jobs/batch", {"jobs": jobs}).status_code == 429
    assert not Job.objects.exists()

    partial = api.send("jobs/bulk", {"jobs": jobs}).json()
    assert [item["status"] for item in partial["items"]] == [*["created"] * 3, "failed"]


@pytest.mark.parametrize("strategy", ["reject", "block", "drop_oldest"])
def test_more_jobs_than_the_queue_may_hold_are_not_worth_a_retry_or_a_wait(api, strategy):
    bound(api, max_depth=2, strategy=strategy)
    jobs = [A_JOB | {"queue": "mail"}] * 3

    reply = api.send("jobs/batch", {"jobs": jobs}, headers={"OJS-Block-Timeout": "3600"})

    error = refusal(reply)
    assert (reply.status_code, error["code"], error["retryable"]) == (429, "QUEUE_FULL", False)
    assert "3 jobs" in error["message"] and "fewer" in error["hint"]
    assert not Job.objects.exists()
    assert event_types().count("backpressure.rejected") == 1


@pytest.mark.parametrize("atomicity", ["atomic", "partial"])
def test_the_answer_to_a_bulk_enqueue_warns_of_the_fullest_queue(api, atomicity):
    bound(api, max_depth=4, warning_threshold=0.5)
    mail = {"type": "a.b", "args": [], "options": {"queue": "mail"}}
    other = {"type": "a.b", "args": []}

    def enqueued(*jobs):
        return api.send("jobs/bulk", {"jobs": jobs, "atomicity": atomicity})

    replies = [enqueued(mail, mail), enqueued(other, mail), enqueued(mail), enqueued(mail)]

    pressures = [reply.headers.get("X-OJS-Queue-Pressure") for reply in replies]
    assert pressures == [None, "0.75", "1.00", None]
    assert replies[-1].status_code == 422, "it is full"


def test_near_the_bound_the_answer_warns_and_says_so_once(api):
    bound(api, max_depth=4, warning_threshold=0.5)

    replies = [api.push(queue="mail") for _ in range(4)]

    pressures = [reply.headers.get("X-OJS-Queue-Pressure") for reply in replies]
    assert pressures == [None, None, "0.75", "1.00"]
    assert event_types().count("backpressure.warning") == 1
    api.fetch("mail", count=3)
    engine.relieve()
    assert event_types().count("backpressure.cleared") == 1


def test_a_queue_that_drops_the_oldest_takes_the_new_one(api):
    bound(api, max_depth=2, strategy="drop_oldest")
    first, *rest = [api.pushed(queue="mail") for _ in range(3)]

    assert api.job(first)["state"] == "discarded"
    assert {job["id"] for job in api.fetch("mail", count=5)} == set(rest)
    assert {"backpressure.dropped", "job.discarded"} <= set(event_types())


def test_no_job_of_another_project_is_dropped_for_a_new_one(api):
    acme, other = (OJSClient(make_key("key", project=name)[1]) for name in ("acme", "other"))
    bound(api, max_depth=2, strategy="drop_oldest")
    theirs, mine = acme.pushed(queue="mail"), other.pushed(queue="mail")

    newest = other.pushed(queue="mail")

    assert (acme.job(theirs)["state"], other.job(mine)["state"]) == ("available", "discarded")
    third = OJSClient(make_key("key", project="third")[1])
    refused = third.push(queue="mail").json()["error"]
    # The bound is about the jobs of all projects, and so is the depth.
    assert (refused["code"], refused["details"]["depth"]) == ("QUEUE_FULL", 2)
    assert {acme.job(theirs)["state"], other.job(newest)["state"]} == {"available"}


def close(api, how):
    """Refuse new jobs of the queue `mail`, in which one waits, of no tenant."""
    if how == "full":
        bound(api, max_depth=1)
    elif how == "draining":
        api.send("queues/mail/drain")
    elif how == "for other types":
        put(api, "queues/mail/config", {"allowed_job_types": ["sms.*"]})
    elif how == "at the limit of the tenant":
        put(api, "admin/tenants/_default/limits", {"max_queue_depth": 0})
    else:
        maintenance.begin(actor=of_shell(), refuses_jobs=True)


CLOSED = ["full", "draining", "for other types", "at the limit of the tenant", "in maintenance"]


@pytest.mark.parametrize("how", CLOSED)
def test_a_repeated_request_is_a_duplicate_also_where_new_jobs_are_refused(api, how):
    job = {"id": str(uuid7()), "queue": "mail"}
    api.pushed(**job)
    close(api, how)
    refused = api.push(queue="mail", id=str(uuid7())).json()["error"]["code"]
    assert refused != "duplicate"
    before = event_types()

    again = refusal(api.push(**job))
    among_others = api.send("jobs/batch", {"jobs": [A_JOB | {"queue": "mail"}, A_JOB | job]})
    unique = refusal(api.push(**job, unique={"keys": ["type", "args"]}))

    assert (again["code"], again["details"]["existing_job_id"]) == ("duplicate", job["id"])
    assert refusal(among_others)["code"] == unique["code"] == "duplicate"
    assert event_types() == before
    assert Job.objects.count() == 1


def test_a_repeated_request_does_not_wait_for_room(api):
    job = A_JOB | {"id": str(uuid7()), "queue": "mail"}
    api.pushed(**job)
    bound(api, max_depth=1, strategy="block")

    again = api.send("jobs", job, headers={"OJS-Block-Timeout": "3600"})

    assert refusal(again)["code"] == "duplicate"


def test_the_bound_holds_in_python_too(api):
    bound(api, max_depth=1)
    enqueue("a", queue="mail")

    with pytest.raises(QueueFull):
        enqueue("a", queue="mail")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_plain_enqueue_is_one_statement_while_another_queue_is_bounded(
    api, django_assert_num_queries
):
    bound(api, max_depth=1)
    api.pushed(queue="plain")

    with django_assert_num_queries(1):
        api.pushed(queue="plain")


def test_a_queue_gives_its_jobs_what_they_do_not_say_themselves(api):
    config = {"default_timeout": 60, "default_retry": {"max_attempts": 7}}
    put(api, "queues/mail/config", config)

    plain, own = api.pushed(queue="mail"), api.pushed(queue="mail", timeout_ms=5000)

    assert api.job(plain)["timeout_ms"] == 60_000
    assert api.job(plain)["max_attempts"] == 7
    assert api.job(own)["timeout_ms"] == 5000


def test_a_queue_takes_only_the_types_it_is_for(api):
    put(api, "queues/mail/config", {"allowed_job_types": ["email.*"]})

    assert api.push(queue="mail", type="email.send").status_code == 201
    assert refusal(api.push(queue="mail", type="sms.send"))["code"] == "JOB_TYPE_NOT_ALLOWED"


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({"colour": 1}, 400),
        ({"max_size": -1}, 400),
        ({"max_size": "many"}, 400),
        ({"overflow_policy": "panic"}, 400),
        ({"backpressure": {"max_depth": 1.5}}, 400),
        ({"backpressure": {"warning_threshold": 2}}, 400),
        ({"retention": {"active": "P1D"}}, 400),
        ({"retention": {"completed": "soon"}}, 400),
        ({"default_retry": {"max_attempts": -1}}, 400),
        ({"rate_limit": {"limit": 1}}, 400),
        ({"max_size_bytes": 5}, 422),
        ({"producers": ["billing"]}, 422),
        ({"dead_letter_queue": "No such name"}, 400),
        ({"dead_letter_queue": "mail"}, 400),
        ({"dead_letter_ttl": "PT0S"}, 400),
        ({"dead_letter": {"retention": {"max_size": 1}}}, 400),
    ],
)
def test_a_configuration_that_cannot_be_kept_is_refused_and_nothing_changes(api, config, status):
    reply = put(api, "queues/mail/config", config)

    assert reply.status_code == status
    assert refusal(reply)["details"]["field"]
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    ("config", "place", "other"),
    [
        ({"max_size": 6, "backpressure": {"max_depth": 5}}, "backpressure", "max_size"),
        ({"max_size": 6, "max_depth": 5}, "max_depth", "max_size"),
        ({"backpressure": {"max_size": 6, "max_depth": 5}}, "backpressure.max_depth", "max_size"),
        ({"overflow_policy": "reject", "strategy": "block"}, "strategy", "overflow_policy"),
        ({"backpressure": None, "max_size": 5}, "max_size", "backpressure"),
        ({"concurrency": 5, "rate_limit": {"concurrency": 6}}, "rate_limit", "concurrency"),
        (
            {"dead_letter_ttl": "P1D", "dead_letter": {"retention": {"max_age": "P2D"}}},
            "dead_letter",
            "dead_letter_ttl",
        ),
    ],
)
def test_members_that_contradict_each_other_are_refused(api, config, place, other):
    error = refusal(put(api, "queues/mail/config", config))

    assert (error["code"], error["details"]["field"]) == ("invalid_request", place)
    assert other in error["message"]
    assert not Queue.objects.exists()


def test_a_configuration_may_be_sent_back_as_it_is_shown(api):
    """A bound stands in it in both spellings."""
    config = {"max_size": 5, "overflow_policy": "block", "dead_letter": {"retention": {}}}
    put(api, "queues/mail/config", config)
    shown = api.see("queues/mail/config").json()["config"]
    assert shown["backpressure"]["max_depth"] == shown["max_size"] == 5

    assert put(api, "queues/mail/config", shown).status_code == 200
    assert api.see("queues/mail/config").json()["config"] == shown


def test_a_member_not_named_stays_and_null_takes_it_away(api):
    put(api, "queues/mail/config", {"max_size": 5, "concurrency": 3})
    put(api, "queues/mail/config", {"retention": {"completed": "PT1H"}})
    kept = put(api, "queues/mail/config", {"max_size": None}).json()["config"]

    assert kept == {"concurrency": 3, "retention": {"completed": "PT1H"}}
    assert api.push(queue="mail").status_code == 201
    assert event_types().count("queue.config_updated") == 3


def test_finished_jobs_go_by_the_retention_of_their_queue(api):
    put(api, "queues/short/config", {"retention": {"completed": "PT1M"}})
    put(api, "queues/long/config", {"retention": {"completed": "P30D"}})
    for queue in ("short", "long", "plain"):
        JobFactory(completed=True, queue=queue, finished_at=ago(3600))
        JobFactory(completed=True, queue=queue, finished_at=ago(8 * 86_400))

    while engine.prune_jobs():
        pass

    left = sorted(Job.objects.values_list("queue", flat=True))
    assert left == ["long", "long", "plain"]


def test_jobs_that_die_are_enqueued_once_more_in_the_dead_letter_queue_of_their_queue(api):
    JobFactory(dead=True, queue="mail", finished_at=ago(60))
    put(api, "queues/mail/config", {"dead_letter_queue": "mail-dead"})
    put(api, "queues/mail-dead/config", {"dead_letter_queue": "mail"})
    job_id = api.pushed(queue="mail", meta={"order": 7}, retry={"max_attempts": 1})
    api.fetch("mail")
    api.nack(job_id, message="451 try later")

    assert engine.forward_dead() == 1

    (job,) = api.fetch("mail-dead")
    assert (job["id"], job["attempt"], job["meta"]["order"]) == (job_id, 1, 7)
    assert job["meta"]["ojs.dead_letter.queue"] == "mail"
    assert [error["message"] for error in api.job(job_id)["errors"]] == ["451 try later"]
    api.nack(job_id)
    assert engine.forward_dead() == 0, "it goes there once, and what died before stays"
    assert sorted(Job.objects.dead().values_list("queue", flat=True)) == ["mail", "mail-dead"]
    config = api.see("queues/mail/config").json()["config"]
    assert config == {"dead_letter_queue": "mail-dead"}


def test_a_queue_keeps_a_dead_letter_of_its_own_age_and_size(api, settings):
    settings.OJS = settings.OJS | {"DEAD_LETTER_MAX": 1}
    of_long = {"dead_letter": {"retention": {"max_age": "P400D", "max_count": 3}}}
    put(api, "queues/long/config", of_long)
    put(api, "queues/short/config", {"dead_letter_ttl": "P2D", "dead_letter_max_size": 2})
    for queue in ("long", "short", "plain"):
        for days in (0, 0, 1, 3, 300):
            JobFactory(dead=True, queue=queue, finished_at=ago(days * 86_400 + 60))

    while engine.prune_jobs():
        pass

    left = Counter(Job.objects.values_list("queue", flat=True))
    assert left == {"long": 3, "short": 2, "plain": 1}
    pruned: Counter[str] = Counter()
    for event in Event.objects.filter(type="dead_letter.pruned"):
        pruned[event.queue] += event.data["pruned"]
    assert pruned == {"long": 2, "short": 3, "plain": 4}


def test_a_purge_must_be_confirmed_and_spares_active_jobs(api):
    many_jobs(3, queue="mail")
    JobFactory(queue="mail", active=True)
    JobFactory(queue="other")
    QueueFactory(name="mail")
    path, states = "admin/queues/mail/jobs", {"states": ["available"]}

    assert refusal(delete(api, path, states))["details"]["field"] == "confirm"
    assert refusal(delete(api, path, {"states": ["active"], "confirm": True}))
    reply = delete(api, path, states | {"confirm": True})

    assert reply.json()["purged_count"] == 3
    assert sorted(Job.objects.values_list("queue", "state")) == [
        ("mail", "active"),
        ("other", "available"),
    ]


def test_a_queue_with_unfinished_jobs_is_deleted_only_with_a_decision_about_them(api):
    api.pushed(queue="old")
    assert delete(api, "queues/old", {"strategy": "reject"}).status_code == 409

    reply = delete(api, "queues/old", {"strategy": "move", "target_queue": "new"})

    assert (reply.status_code, reply.json()["jobs_affected"]) == (200, 1)
    assert [queue["name"] for queue in api.see("queues").json()["queues"]] == ["new"]
    assert len(api.fetch("new")) == 1


def test_a_discarding_deletion_drains_until_the_active_jobs_are_done(api):
    job = api.pushed(queue="old")
    api.fetch("old")
    waiting = api.pushed(queue="old")

    reply = delete(api, "queues/old", {"strategy": "discard"})
    assert (reply.status_code, reply.json()["state"]) == (202, "draining")
    assert api.job(waiting)["state"] == "discarded"
    assert refusal_of_draining(api.push(queue="old"))

    api.ack(job)
    assert delete(api, "queues/old", {"strategy": "discard"}).status_code == 200
    assert event_types()[-1] == "queue.deleted"


def refusal_of_draining(reply) -> bool:
    return reply.status_code == 422 and reply.json()["error"]["code"] == "queue_draining"


def test_statistics_count_every_state(api):
    QueueFactory(name="mail")
    for trait in ("pending", "scheduled", "active", "retryable", "completed", "cancelled", "dead"):
        JobFactory(queue="mail", **{trait: True})
    many_jobs(2, queue="mail")
    JobFactory(queue="other")

    body = api.see("queues/mail/stats").json()

    expected = dict.fromkeys(
        ("pending", "scheduled", "active", "retryable", "completed", "cancelled", "discarded"), 1
    )
    assert {name: body["stats"][name] for name in expected} == expected
    assert (body["stats"]["available"], body["stats"]["depth"]) == (2, 5)
    assert body["queue"]["name"] == body["stats"]["queue"] == body["name"] == "mail"
    assert body["stats"]["total"] == 9
    assert api.see("queues/nowhere/stats").status_code == 404


def test_statistics_tell_what_happened_in_the_last_hour(api):
    """OJS HTTP §11.2."""
    QueueFactory(name="mail")
    for minutes, run in ((1, 2), (59, 4), (61, 100)):
        ended = ago(60 * minutes)
        began = ended - timedelta(seconds=run)
        job = JobFactory(queue="mail", completed=True, started_at=began, finished_at=ended)
        Job.objects.filter(pk=job.pk).update(enqueued_at=began - timedelta(seconds=1))
    JobErrorFactory(job=JobFactory(queue="mail", dead=True))
    JobErrorFactory(job=JobFactory(queue="other", dead=True))

    stats = api.see("queues/mail/stats").json()["stats"]

    recently = ("completed_last_hour", "failed_last_hour", "avg_duration_ms", "avg_wait_ms")
    assert [stats[name] for name in recently] == [2, 1, 3000, 1000]
    assert stats["throughput_per_second"] == 0.0


@pytest.mark.parametrize("path", ["stats", "pause", "resume"])
def test_a_public_client_sees_the_queue_under_its_own_name(api, path):
    """The name, which the Go SDK reads; plain users get an object."""
    QueueFactory(name="mail")
    method = "get" if path == "stats" else "post"

    for headers, kind in (({"HTTP_OJS_VERSION": "1.0"}, str), ({}, dict)):
        reply = api.generic(method.upper(), f"{V1}/queues/mail/{path}", **headers)
        assert type(reply.json()["queue"]) is kind


def close_the_queue(api):
    many_jobs(1, queue="slow")
    put(api, "queues/slow/config", {"max_size": 1, "default_timeout": 7})


def drain_the_queue(api):
    put(api, "queues/slow/config", {"allowed_job_types": ["nothing"], "default_timeout": 7})


def begin_maintenance(api):
    put(api, "queues/slow/config", {"default_timeout": 7})
    maintenance.begin(actor=of_shell(), refuses_jobs=True)


@pytest.mark.parametrize("close", [close_the_queue, drain_the_queue, begin_maintenance])
def test_a_running_workflow_continues_while_new_ones_are_refused(api, close):
    steps = [{"type": "a", "args": []}, {"type": "b", "args": [], "options": {"queue": "slow"}}]
    flow = {"type": "chain", "steps": steps}
    assert api.send("workflows", flow).status_code == 201
    (first,) = api.fetch()
    close(api)

    assert api.ack(first["id"]).status_code == 200

    second = Job.objects.get(type="b")
    assert (second.state, second.timeout) == ("available", timedelta(seconds=7))
    flow["steps"] = steps[1:]
    assert api.send("workflows", flow).status_code in (422, 429, 503), "a new one is refused"


POLICY = {"default_retry": {"max_attempts": 7}, "default_timeout": 60, "concurrency": 2}


def set_default(api, **config):
    return put(api, "queues/_default/config", config)


def test_queues_made_from_now_on_are_as_the_default_policy_says(db, api):
    """OJS queue configuration §7: applies to the first job, too; existing queues are unchanged."""
    api.pushed(options={"queue": "old"})
    assert set_default(api, **POLICY).json()["config"] == POLICY
    assert api.see("queues/_default/config").json()["config"] == POLICY

    job = api.job(api.pushed(options={"queue": "new"}))

    assert (job["max_attempts"], job["timeout_ms"]) == (7, 60_000)
    assert POLICY.items() <= api.see("queues/new/config").json()["config"].items()
    assert api.job(api.pushed(options={"queue": "new", "max_attempts": 2}))["max_attempts"] == 2
    assert api.job(api.pushed(options={"queue": "old"}))["max_attempts"] == 3
    assert "_default" not in api.see("queues").content.decode()
    assert len(api.fetch("new", count=10)) == 2


def test_a_queues_own_setting_overrides_the_default_policy(db, api):
    set_default(api, **POLICY, rate_limit={"limit": 5, "period": "PT1M"})

    api.send("queues", {"name": "own", "config": {"default_timeout": 5}})
    api.send("queues/waiting/pause", {})

    own = api.see("queues/own/config").json()["config"]
    assert (own["default_timeout"], own["concurrency"]) == (5, 2)
    waiting = api.see("queues/waiting/config").json()["config"]
    assert (waiting["default_timeout"], waiting["concurrency"]) == (60, 2)
    assert RateLimit.objects.count() == 2


def test_a_default_policy_may_be_taken_back_and_must_make_sense(db, api):
    set_default(api, **POLICY)

    assert set_default(api, concurrency=-1).status_code == 400
    assert set_default(api, **dict.fromkeys(POLICY)).json()["config"] == {}
    assert api.send("queues", {"name": "_default"}).status_code == 400
    assert api.push(options={"queue": "_default"}).status_code == 400


@pytest.mark.django_db(transaction=True)
def test_a_queue_that_another_process_deleted_is_made_again_by_the_next_job(api):
    put(api, "queues/_default/config", {"max_size": 2})
    api.pushed(queue="mail")
    api.ack(api.fetch("mail")[0]["id"])
    # Not through this process's API, and without telling it: as another process would.
    engine.queues.delete("mail", strategy="reject")

    replies = [api.push(queue="mail").status_code for _ in range(4)]

    assert replies == [201, 201, 429, 429]
    assert [queue["name"] for queue in api.see("queues").json()["queues"]] == ["mail"]


def test_a_dead_job_of_a_deleted_queue_is_fetched_after_its_retry(api):
    limit = {"key": "mail", "concurrency": 1}
    job_id = api.pushed(queue="mail", rate_limit=limit, retry={"max_attempts": 1})
    api.fetch("mail")
    api.nack(job_id)
    assert delete(api, "queues/mail", {"strategy": "reject"}).status_code == 200

    assert api.send(f"dead-letter/{job_id}/retry", {}).status_code == 200

    assert [job["id"] for job in api.fetch("mail")] == [job_id]
    assert [queue["name"] for queue in api.see("queues").json()["queues"]] == ["mail"]


def test_a_queue_deleted_while_a_job_was_being_enqueued_is_made_again(api):
    """Neither transaction sees the other: what is left is a job without a queue."""
    job_id = api.pushed(queue="mail", rate_limit={"key": "mail", "concurrency": 1})
    Queue.objects.filter(pk="mail").delete()
    assert api.fetch("mail") == []

    assert engine.queue_marks.mend() == 1

    assert [job["id"] for job in api.fetch("mail")] == [job_id]
    assert engine.queue_marks.mend() == 0
