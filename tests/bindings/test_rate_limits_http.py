"""Rate limits at FETCH, and what operators see of them (OJS rate limiting)."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest
from django.db.models import F

from jobs import engine
from jobs.access.audit import of_shell
from jobs.engine import maintenance
from jobs.errors import TooManyConnections
from jobs.http.base import refused
from jobs.models import Event, Job, OperatorAction, RateLimit
from tests.factories import ago, ahead
from tests.ojs_client import V1, refusal

HOUR = {"limit": 2, "period": "PT1H"}


def limited(api, key="stripe", **policy) -> str:
    job = {name: policy.pop(name) for name in ("queue", "priority", "type") if name in policy}
    # Retries are due long after the test.
    job["retry"] = {"initial_interval": "PT1H", "max_interval": "PT1H", "jitter": False}
    return api.pushed(**job, rate_limit={"key": key} | policy)


def given(api, *queues, count=10) -> list[str]:
    return [job["id"] for job in api.fetch(*queues, count=count, worker_id="w")]


def override(api, body):
    path = f"{V1}/rate-limits/stripe"
    reply = api.put(path, data=orjson.dumps(body), content_type="application/json")
    assert reply.status_code == 200, reply.content
    return reply.json()


def kinds(prefix: str) -> list[str]:
    rows = Event.objects.filter(type__startswith=prefix).order_by("pk")
    return list(rows.values_list("type", flat=True))


def rewind(seconds: float) -> None:
    """Make the starts that a partition remembers older by this much."""
    row = RateLimit.objects.get()
    rate = row.policy.get("rate")
    if rate:
        from jobs.spec.rate_policy import _width

        slices = int(seconds * 1e6) // _width(rate)
        starts = [[number - slices, count] for number, count in row.starts]
        RateLimit.objects.update(starts=starts)
    RateLimit.objects.filter(next_at__isnull=False).update(
        next_at=F("next_at") - timedelta(seconds=seconds)
    )
    RateLimit.objects.update(closed_until=None)


def test_no_more_jobs_of_a_key_run_than_its_concurrency_and_an_ack_frees_a_place(api):
    first, second = (limited(api, concurrency=1) for _ in range(2))

    assert given(api) == [first]
    assert given(api) == []
    assert api.job(second)["state"] == "available"
    api.ack(first, worker_id="w")
    assert given(api) == [second]
    assert kinds("rate_limit.") == ["rate_limit.exceeded", "rate_limit.released"]


def test_a_window_lets_so_many_start_and_no_more_until_they_have_left_it(api):
    jobs = [limited(api, rate=HOUR) for _ in range(5)]

    assert given(api) == jobs[:2]
    assert given(api) == []
    rewind(3500)
    assert given(api) == []
    rewind(200)
    assert given(api) == jobs[2:4]


def test_a_throttle_spaces_the_starts_and_a_burst_saves_them_up(api):
    jobs = [limited(api, throttle={"limit": 60, "period": "PT1H"}) for _ in range(3)]
    burst = {"limit": 60, "period": "PT1H", "burst": 2}
    saved = [limited(api, key="bucket", throttle=burst, queue="saved") for _ in range(3)]

    assert given(api, "saved") == saved[:2]
    RateLimit.objects.filter(pk="bucket").delete()
    assert given(api) == jobs[:1]
    rewind(30)
    assert given(api) == []
    rewind(31)
    assert given(api) == jobs[1:2]


def test_jobs_behind_a_limited_one_are_given_by_priority_and_age(api):
    running = limited(api, concurrency=1, priority=9)
    blocked = limited(api, concurrency=1, priority=8)
    free = api.pushed(priority=1)
    other = limited(api, key="other", concurrency=5, priority=2)

    assert given(api) == [running, other, free]
    assert api.job(blocked)["state"] == "available"


def test_a_limit_holds_across_queues_and_retries(api):
    first = limited(api, queue="a", concurrency=1)
    limited(api, queue="b", concurrency=1)

    assert given(api, "a", "b") == [first]
    api.nack(first, worker_id="w")
    Job.objects.filter(pk=first).update(scheduled_at=ago(1))
    assert given(api, "a", "b") == [first], "due again, and first in the order of the queues"


def test_where_the_policy_says_so_a_job_is_put_off_or_dropped(api):
    limited(api, key="later", rate=HOUR, on_limit="reschedule", queue="later")
    put_off = [
        limited(api, key="later", rate=HOUR, on_limit="reschedule", queue="later") for _ in range(2)
    ][-1]
    limited(api, key="never", rate=HOUR, on_limit="drop", queue="never")
    dropped = [
        limited(api, key="never", rate=HOUR, on_limit="drop", queue="never") for _ in range(2)
    ][-1]

    given(api, "later", "never")

    assert api.job(put_off)["state"] == "scheduled"
    assert api.job(dropped)["state"] == "discarded"
    assert "rate_limit.dropped" in kinds("rate_limit.")


@pytest.mark.parametrize(("action", "state"), [("drop", "discarded"), ("reschedule", "scheduled")])
def test_a_job_that_is_to_wait_does_so_whatever_others_with_its_key_say(api, action, state):
    limited(api, concurrency=1)
    patient = limited(api, concurrency=1)
    other = limited(api, concurrency=1, on_limit=action)

    given(api)

    assert api.job(patient)["state"] == "available"
    assert api.job(other)["state"] == state


def test_an_operator_may_drop_all_jobs_of_a_key(api):
    running, patient = (limited(api, concurrency=1) for _ in range(2))
    override(api, {"on_limit": "drop", "concurrency": 1})

    assert given(api) == [running]

    assert api.job(patient)["state"] == "discarded"


def test_a_whole_queue_can_be_limited(api):
    jobs = [api.pushed(queue="mail") for _ in range(3)]
    reply = api.put(
        f"{V1}/admin/queues/mail/rate-limit",
        data=orjson.dumps({"rate": HOUR}),
        content_type="application/json",
    )
    assert reply.status_code == 200

    assert given(api, "mail") == jobs[:2]
    assert given(api, "mail") == []


def test_a_handler_that_met_its_apis_limit_holds_the_key(api):
    first, second = (limited(api, concurrency=5) for _ in range(2))
    assert given(api, count=1) == [first]
    api.nack(first, worker_id="w", rate_limit_until=ahead(60).isoformat())

    assert given(api) == []
    assert kinds("rate_limit.dynamic") == ["rate_limit.dynamic_adjusted"]
    RateLimit.objects.update(held_until=ago(1), closed_until=None)
    assert given(api) == [second]


def test_an_operator_ends_such_a_hold_or_begins_one(api):
    first, second = (limited(api, concurrency=5) for _ in range(2))
    assert given(api, count=1) == [first]
    api.nack(first, worker_id="w", rate_limit_until="9999-12-31T23:59:59Z")
    assert given(api) == []
    assert RateLimit.objects.get().held_until < ahead(400 * 86_400), "a year at most"

    assert "held_until" in override(api, {"concurrency": 5}), "not mentioned, so it stays"
    assert given(api) == []
    assert "held_until" not in override(api, {"held_until": None})
    assert given(api) == [second]

    limited(api, concurrency=5)
    assert "held_until" in override(api, {"held_until": "+PT1H"})
    assert given(api) == []
    assert OperatorAction.objects.latest("pk").selection["held_until"] == "+PT1H"


def test_a_hold_of_the_past_is_refused(api):
    limited(api, concurrency=5)
    body = orjson.dumps({"held_until": "2020-01-01T00:00:00Z"})

    reply = api.put(f"{V1}/rate-limits/stripe", data=body, content_type="application/json")

    assert refusal(reply)["details"]["field"] == "held_until"


def test_an_operator_sees_a_limit_and_overrides_it_for_a_while(api):
    limited(api, concurrency=2, rate=HOUR)
    limited(api, concurrency=2, rate=HOUR)
    given(api, count=1)

    seen = api.see("rate-limits/stripe").json()
    assert seen["concurrency"] == {"limit": 2, "active": 1, "available": 1}
    assert (seen["rate"]["current_count"], seen["waiting_count"]) == (1, 1)
    assert [item["key"] for item in api.see("rate-limits").json()["items"]] == ["stripe"]

    override(api, {"concurrency": 0, "expires_at": "+PT1H"})
    assert given(api) == []
    RateLimit.objects.update(override_until=ago(1))
    assert len(given(api)) == 1
    assert api.see("rate-limits/nothing").status_code == 404


def test_the_answer_to_an_enqueue_says_what_the_window_allows(api):
    reply = api.push(rate_limit={"key": "k", "rate": HOUR})

    assert reply.headers["X-RateLimit-Limit"] == "2"
    assert reply.headers["X-RateLimit-Remaining"] == "2"


@pytest.mark.parametrize(("keys", "limit"), [(("k", "k"), "2"), (("k", "other"), None)])
def test_the_answer_to_a_batch_says_it_of_the_one_limit_that_its_jobs_have(api, keys, limit):
    limits = [{"key": key, "rate": HOUR} for key in keys]
    jobs = [{"type": "a", "args": [], "rate_limit": each} for each in limits]

    reply = api.send("jobs/batch", {"jobs": jobs})

    assert reply.status_code == 201
    assert reply.headers.get("X-RateLimit-Limit") == limit


def test_the_refusal_of_a_connection_says_what_the_limit_is(db):
    """OJS HTTP §18.2."""
    reply = refused({}, TooManyConnections("100 connections are open.", limit=100))

    assert reply.status_code == 429
    assert (reply["X-RateLimit-Limit"], reply["X-RateLimit-Remaining"]) == ("100", "0")
    assert int(reply["X-RateLimit-Reset"]) > 1_700_000_000
    assert reply["Retry-After"] == "5"


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({}, "rate_limit.key"),
        ({"key": "a b"}, "rate_limit.key"),
        ({"key": "k", "concurrency": -1}, "rate_limit.concurrency"),
        ({"key": "k", "rate": {"period": "PT1S"}}, "rate_limit.rate.limit"),
        ({"key": "k", "rate": {"limit": 1}}, "rate_limit.rate.period"),
        ({"key": "k", "rate": {"limit": 1, "period": "PT0S"}}, "rate_limit.rate.period"),
        ({"key": "k", "throttle": {"limit": 1, "period": "x"}}, "rate_limit.throttle.period"),
        ({"key": "k", "on_limit": "panic"}, "rate_limit.on_limit"),
        ({"key": "k", "scope": "queue"}, "rate_limit.scope"),
        ({"key": "k", "retry_priority": "first"}, "rate_limit.retry_priority"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_refused(api, policy, field):
    assert refusal(api.push(rate_limit=policy))["details"]["field"] == field
    assert not Job.objects.exists()


@pytest.mark.parametrize("order", ["prefer_retry", "prefer_new"])
def test_an_order_of_retries_that_would_not_be_kept_is_refused(api, order):
    reply = api.push(rate_limit={"key": "k", "retry_priority": order})

    error = refusal(reply)
    assert (reply.status_code, error["code"]) == (422, "unsupported")
    assert error["details"]["field"] == "rate_limit.retry_priority"
    same = api.pushed(rate_limit={"key": "k", "retry_priority": "equal"})
    assert api.job(same)["rate_limit"]["retry_priority"] == "equal"


def test_a_rate_limited_job_goes_only_to_a_worker_that_can_do_it(api):
    policy = {"key": "stripe", "concurrency": 5}
    needy = api.pushed(meta={"capabilities": ["gpu"]}, rate_limit=policy)
    plain = api.pushed(rate_limit=policy)

    def claim(*able):
        return [str(job.id) for job in engine.claim(["default"], count=10, able=able)]

    assert claim("cpu") == [plain]
    assert claim("cpu", "gpu") == [needy]


def test_a_project_is_given_its_own_rate_limited_jobs_only(api):
    policy = {"key": "stripe", "concurrency": 5}
    mine, _ = api.pushed(rate_limit=policy), api.pushed(rate_limit=policy)
    Job.objects.filter(pk=mine).update(project="acme")

    claimed = engine.claim(["default"], count=10, project="acme")

    assert [str(job.id) for job in claimed] == [mine]


def test_maintenance_stops_rate_limited_jobs_too(api):
    limited(api, rate=HOUR)
    maintenance.begin(actor=of_shell())
    assert given(api) == []

    maintenance.end(actor=of_shell())

    assert len(given(api)) == 1
