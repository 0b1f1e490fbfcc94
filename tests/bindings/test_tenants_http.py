"""Tenants over HTTP: whose a job is, limits, turns, the Admin API (OJS multi-tenancy), pools."""

from __future__ import annotations

import orjson
import pytest
from django.core.checks import run_checks
from django.test.utils import CaptureQueriesContext

import jobs
from jobs import engine
from jobs.access.audit import of_shell
from jobs.engine import maintenance
from jobs.http.authentication import make_key
from jobs.models import Event, Job, OperatorAction, Queue, RateLimit, Tenant
from jobs.realtime.messages import AS_HERE
from jobs.realtime.replay import messages_of
from tests.database import connection
from tests.factories import JobFactory, ahead
from tests.flare_client import FlareClient
from tests.ojs_client import MEDIA_TYPE, V1, OJSClient, refusal

pytestmark = pytest.mark.django_db

TENANTS = f"{V1}/admin/tenants"
POOLS = f"{V1}/admin/pools"


@pytest.fixture
def api():
    return OJSClient(make_key("everything")[1])


def of(tenant, **key):
    """A client that names a tenant in each request."""
    return OJSClient(make_key(tenant or "any", **key)[1], **{"X-OJS-Tenant": tenant})


def put(api, url, body):
    return api.put(url, data=orjson.dumps(body), content_type=MEDIA_TYPE)


def code(reply):
    if reply.status_code == 429:
        error = reply.json()["error"]
        assert error["retryable"] is True
        return 429, error["code"]
    return reply.status_code, refusal(reply)["code"]


def meta(tenant):
    return {"meta": {"tenant_id": tenant}}


# Whose a job is


def test_the_header_gives_a_job_its_tenant_which_alone_sees_it(api):
    acme = of("acme")

    job = acme.push().json()["job"]

    assert job["meta"]["tenant_id"] == "acme"
    assert Job.objects.get().project == "acme"
    assert acme.job(job["id"])["meta"]["tenant_id"] == api.job(job["id"])["meta"]["tenant_id"]
    assert code(of("other").see(f"jobs/{job['id']}")) == (404, "not_found")


def test_a_batch_belongs_to_the_tenant_of_its_request():
    same = [{"type": "a.b", "args": [number]} for number in range(3)]
    for sent in (same, [*same, {"type": "other.type", "args": []}]):
        stored = of("acme").send("jobs/batch", {"jobs": sent}).json()["jobs"]

        assert {job["meta"]["tenant_id"] for job in stored} == {"acme"}
    assert set(Job.objects.values_list("project", flat=True)) == {"acme"}


def test_a_job_may_name_its_tenant_itself_from_http_and_python(api):
    api.pushed(**meta("acme"))
    jobs.enqueue("a.b", meta={"tenant_id": "acme"})
    jobs.enqueue_many([{"type": "a.b", "args": [i], **meta("acme")} for i in range(3)])
    api.pushed()

    assert sorted(Job.objects.values_list("project", flat=True)) == ["", *["acme"] * 5]


def test_a_key_of_a_project_is_its_tenant_and_no_other():
    key = make_key("acme", project="acme")[1]
    acme = OJSClient(key)

    assert acme.push().json()["job"]["meta"]["tenant_id"] == "acme"
    assert code(acme.push(**meta("other"))) == (400, "invalid_request")
    other = OJSClient(key, **{"X-OJS-Tenant": "other"})
    assert code(other.push()) == code(other.see("queues")) == (403, "permission_denied")
    assert Job.objects.count() == 1


@pytest.mark.parametrize("wrong", ["", "a b", "_x", "x" * 101, 7, ["acme"]])
def test_what_is_no_tenant_is_refused(api, wrong):
    reply = api.push(**meta(wrong))

    assert code(reply) == (400, "invalid_request")
    assert refusal(reply)["details"]["field"] == "meta.tenant_id"
    if isinstance(wrong, str) and wrong:
        assert refusal(of(wrong).push())["details"]["field"] == "X-OJS-Tenant"


def test_the_header_and_the_job_must_agree():
    acme = of("acme")

    assert acme.push(**meta("acme")).status_code == 201
    assert code(acme.push(**meta("other"))) == (400, "invalid_request")


def test_the_event_of_a_dead_letter_names_its_tenant_and_no_other_event_does(api):
    """OJS extension interactions §8.2: consumers notify the right tenant."""
    for job in (meta("acme"), meta("globex"), {}):
        api.pushed(max_attempts=1, **job)
        api.nack(api.fetch()[0]["id"])

    events = api.see("events").json()["events"]

    dead = [event["data"] for event in events if event["type"] == "job.dead_lettered"]
    assert [data.get("tenant_id") for data in dead] == ["acme", "globex", None]
    named = [event["type"] for event in events if "tenant_id" in event["data"]]
    assert named == ["job.dead_lettered"] * 2
    row = Event.objects.filter(type="job.dead_lettered").order_by("pk")[:1]
    (message,) = messages_of(row)
    assert orjson.loads(message.data(AS_HERE, ""))["tenant_id"] == "acme"


def test_a_site_may_require_a_tenant_or_have_none(api, settings):
    settings.OJS = {"MULTI_TENANCY": "required"}
    assert code(api.push()) == (422, "validation_error")
    assert api.push(**meta("acme")).status_code == of("acme").push().status_code == 201

    settings.OJS = {"MULTI_TENANCY": "off"}
    assert code(of("acme").push()) == (400, "invalid_request")
    api.pushed(**meta({"any": "thing"}))
    assert Job.objects.latest("pk").project == ""
    named = "urn:ojs:ext:multi-tenancy"
    assert named not in api.get("/ojs/manifest").json()["extensions"]


def test_a_job_enqueued_over_flare_has_its_tenant_as_well(settings):
    settings.OJS = {"MULTI_TENANCY": "required", "FLARE": {"ENABLED": True}}
    acme = FlareClient(make_key("acme", project="acme")[1])

    acme.enqueued()

    job = Job.objects.get()
    assert (job.project, job.meta["tenant_id"]) == ("acme", "acme")
    refused = FlareClient(make_key("anyone")[1]).enqueue()
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "validation_error")
    assert Job.objects.count() == 1


def test_the_steps_of_a_workflow_have_one_tenant(api):
    def chain(*steps):
        return {"type": "chain", "steps": [{"type": "a.b", "args": []} | step for step in steps]}

    assert code(api.send("workflows", chain(meta("acme"), meta("other")))) == (
        400,
        "invalid_request",
    )
    assert api.send("workflows", chain({}, meta("acme"), {})).status_code == 201
    for _ in range(3):
        (job,) = api.fetch()
        assert job["meta"]["tenant_id"] == "acme"
        api.ack(job["id"])


# Limits


def test_a_tenant_at_a_limit_is_refused_and_others_are_not(api):
    put(api, f"{TENANTS}/acme/limits", {"max_queue_depth": 2})
    acme = of("acme")
    acme.pushed()
    acme.pushed(scheduled_at=ahead(60).isoformat())

    reply = acme.push()

    assert code(reply) == (429, "TENANT_LIMIT_EXCEEDED")
    assert int(reply["Retry-After"]) >= 1
    error = reply.json()["error"]
    about = {"tenant_id": "acme", "limit": "max_queue_depth", "current": 2, "maximum": 2}
    assert about.items() <= error.items()
    event = Event.objects.get(type="tenant.limit_exceeded")
    assert event.data == about | {"soft": False}
    batch = {"jobs": [{"type": "a.b", "args": [], **meta(name)} for name in ("acme", "other")]}
    assert api.send("jobs/batch", batch).status_code == 429
    of("other").pushed()
    api.pushed()
    api.fetch(count=9)
    acme.pushed()


@pytest.mark.parametrize(
    ("limits", "job", "status"),
    [
        ({"max_enqueue_rate": {"limit": 1, "period": "PT1H"}}, {}, 429),
        ({"max_scheduled": 1}, {"scheduled_at": "2199-01-01T00:00:00Z"}, 429),
        ({"max_job_size": 60}, {"args": ["x" * 60]}, 413),
    ],
)
def test_each_limit_refuses_the_second_job(api, limits, job, status):
    put(api, f"{TENANTS}/acme", {"limits": limits})
    acme = of("acme")
    first = job if status == 429 else {}

    assert acme.push(**first).status_code == 201
    assert acme.push(**job).status_code == status
    assert Job.objects.count() == 1
    # What is not limited goes on, and so does everything once the limit is gone.
    put(api, f"{TENANTS}/acme/limits", dict.fromkeys(limits))
    assert acme.push(**job).status_code == 201


@pytest.mark.parametrize(
    "limits",
    [
        {"max_enqueue_rate": {"limit": 2, "period": "PT1H"}},
        {"max_queue_depth": 2},
        {"max_scheduled": 2},
    ],
)
def test_more_jobs_than_the_limit_are_not_worth_a_retry(api, limits):
    put(api, f"{TENANTS}/acme", {"limits": limits})
    job = {"type": "a.b", "args": [], "scheduled_at": "2199-01-01T00:00:00Z"}

    reply = of("acme").send("jobs/batch", {"jobs": [job] * 3})

    error = refusal(reply)
    assert (error["code"], error["retryable"]) == ("TENANT_LIMIT_EXCEEDED", False)
    assert "3 jobs" in error["message"] and "fewer" in error["hint"]
    assert of("acme").send("jobs/batch", {"jobs": [job] * 2}).status_code == 201
    assert code(of("acme").send("jobs", job)) == (429, "TENANT_LIMIT_EXCEEDED")


def test_a_tenant_that_an_operator_stopped_may_try_again_later(api):
    put(api, f"{TENANTS}/acme", {"limits": {"max_queue_depth": 0}})

    assert code(of("acme").push()) == (429, "TENANT_LIMIT_EXCEEDED"), "and it is retryable"


def test_a_deduplicated_answer_says_it_too(api):
    put(api, f"{TENANTS}/acme/limits", {"max_enqueue_rate": {"limit": 7, "period": "PT1H"}})
    unique = {"keys": ["type"], "on_conflict": "ignore"}

    first, again = of("acme").push(unique=unique), of("acme").push(unique=unique)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["X-RateLimit-Remaining"] == "6"


SMALL, LARGE = {"type": "a", "args": []}, {"type": "b", "args": ["x" * 60]}


@pytest.mark.parametrize(
    "workflow",
    [
        {"type": "chain", "steps": [SMALL, LARGE]},
        {"type": "chain", "steps": [SMALL, {"type": "group", "jobs": [LARGE]}]},
        {"type": "chain", "steps": [SMALL | {"compensate": LARGE}]},
        {"type": "batch", "jobs": [SMALL], "callbacks": {"on_failure": LARGE}},
    ],
)
def test_a_workflow_with_a_job_that_would_be_too_large_later_is_refused_at_once(api, workflow):
    put(api, f"{TENANTS}/acme/limits", {"max_job_size": 60})

    refused = of("acme").send("workflows", workflow)

    assert refused.status_code == 413
    assert refused.json()["error"]["details"]["maximum"] == 60
    assert not Job.objects.exists()
    assert of("other").send("workflows", workflow).status_code == 201
    assert of("acme").send("workflows", {"type": "chain", "steps": [SMALL] * 2}).status_code == 201


def test_every_answer_to_an_enqueue_says_how_much_more_a_tenant_may(api):
    """OJS HTTP §18.1, rate limiting §10.4."""
    put(api, f"{TENANTS}/acme/limits", {"max_enqueue_rate": {"limit": 7, "period": "PT1H"}})
    acme, job = of("acme"), {"type": "a.b", "args": []}
    workflow = {"type": "chain", "steps": [job, job]}
    answers = [
        (acme.push(), 6),
        (acme.push(rate_limit={"key": "k", "rate": {"limit": 1, "period": 9}}), 5),
        (acme.send("jobs/batch", {"jobs": [job] * 2}), 3),
        (acme.send("jobs/bulk", {"jobs": [job]}), 2),
        (acme.send("workflows", workflow), 1),
        (acme.send("jobs/batch", {"jobs": [job] * 2}), 1),
        (acme.push(), 0),
        (acme.push(), 0),
    ]

    assert [reply.status_code for reply, _ in answers] == [201] * 5 + [429, 201, 429]
    for reply, remaining in answers:
        found = reply.headers["X-RateLimit-Limit"], reply.headers["X-RateLimit-Remaining"]
        assert found == ("7", str(remaining))
        assert int(reply.headers["X-RateLimit-Reset"]) > 1_700_000_000
    assert "X-RateLimit-Limit" not in of("other").push().headers


def test_maintenance_refuses_the_jobs_of_a_limited_tenant_too(api):
    put(api, f"{TENANTS}/acme/limits", {"max_queue_depth": 9})
    maintenance.begin(actor=of_shell(), refuses_jobs=True)

    assert of("acme").push().status_code == 503
    assert not Job.objects.exists()


def test_a_soft_quota_records_and_accepts(api):
    put(api, f"{TENANTS}/acme", {"limits": {"max_queue_depth": 0}, "quota": "soft"})

    of("acme").pushed()

    assert Event.objects.get(type="tenant.limit_exceeded").data["soft"] is True


@pytest.mark.parametrize("name", ["_default", "house"])
def test_the_default_tenant_may_have_limits_too(api, settings, name):
    settings.OJS = settings.OJS | {"DEFAULT_TENANT": name}
    put(api, f"{TENANTS}/{name}/limits", {"max_queue_depth": 1})
    api.pushed()

    assert code(api.push()) == (429, "TENANT_LIMIT_EXCEEDED")
    of("acme").pushed()


def test_a_priority_boost_lifts_the_jobs_of_a_tenant(api):
    put(api, f"{TENANTS}/acme", {"priority_boost": 30})

    for sent, stored in ((0, 30), (90, 100)):
        assert of("acme").push(priority=sent).json()["job"]["priority"] == stored


def test_no_more_jobs_of_a_tenant_run_than_it_may_have(api):
    waiting = of("acme").pushed()
    put(api, f"{TENANTS}/acme/limits", {"max_concurrency": 2})
    for queue in ("default", "mail", "default", "new"):
        of("acme").pushed(queue=queue)
    other = of("other").pushed()

    first = api.fetch("default", "mail", "new", count=9)

    assert len(first) == 3
    assert {waiting, other} <= {job["id"] for job in first}
    assert api.fetch("mail", "default", "new", count=9) == []
    api.ack(waiting)
    assert len(api.fetch("mail", "default", "new", count=9)) == 1


def cap(api, most=1):
    assert put(api, f"{TENANTS}/acme/limits", {"max_concurrency": most}).status_code < 300


def died(api, queue):
    """Two jobs of acme that died in a queue."""
    fields = {"queue": queue, "project": "acme", **meta("acme"), "finished_at": ahead(1)}
    return [JobFactory(dead=True, **fields).pk for _ in range(2)]


def move_a_queue(api):
    cap(api)
    for _ in range(2):
        of("acme").pushed(queue="mail")
    body = orjson.dumps({"strategy": "move", "target_queue": "other"})
    return api.delete(f"{V1}/queues/mail", data=body, content_type=MEDIA_TYPE)


def forward_the_dead(api):
    cap(api)
    put(api, f"{V1}/queues/mail/config", {"dead_letter_queue": "other"})
    died(api, "mail")
    assert engine.forward_dead() == 2


def retry_in_another_queue(api):
    cap(api)
    for job_id in died(api, "mail"):
        api.send(f"dead-letter/{job_id}/retry", {"override": {"queue": "other"}})


def retry_what_died_before_the_limit(api):
    ids = died(api, "other")
    cap(api)
    for job_id in ids:
        api.send(f"dead-letter/{job_id}/retry", {})


def requeue_what_ran_before_the_limit(api):
    for _ in range(2):
        of("acme").pushed(queue="other")
    running = api.fetch("other", count=2)
    cap(api)
    for job in running:
        api.send("workers/nack", {"job_id": job["id"], "requeue": True})


@pytest.mark.parametrize(
    "make_available",
    [
        move_a_queue,
        forward_the_dead,
        retry_in_another_queue,
        retry_what_died_before_the_limit,
        requeue_what_ran_before_the_limit,
    ],
)
def test_the_limit_of_a_tenant_holds_however_its_jobs_come_into_a_queue(api, make_available):
    api.pushed(queue="other", priority=-5)

    make_available(api)

    taken = api.fetch("other", count=9)
    assert Job.objects.filter(project="acme", queue="other").count() == 2
    assert [job["meta"].get("tenant_id") for job in taken].count("acme") == 1, taken


def test_a_limit_set_while_a_job_was_being_enqueued_holds_soon_after(api):
    """Neither transaction sees the other: what is left is a queue that is not marked."""
    cap(api)
    for _ in range(2):
        of("acme").pushed()
    Queue.objects.update(has_tenants=False, has_limits=False, is_guarded=False)

    assert engine.queue_marks.mend() == 1

    assert len(api.fetch(count=9)) == 1
    assert engine.queue_marks.mend() == 0


def test_a_job_of_a_tenant_cannot_limit_those_of_others(api):
    policy = {"key": "stripe", "concurrency": 0, "scope": "global"}

    reply = of("acme").push(rate_limit=policy)

    assert refusal(reply)["details"]["field"] == "rate_limit.scope"
    assert not Job.objects.exists()
    of("acme").pushed(rate_limit=policy | {"scope": "tenant"})
    api.pushed(rate_limit=policy)
    assert set(RateLimit.objects.values_list("pk", flat=True)) == {"acme@stripe", "stripe"}


def test_a_tenant_has_one_limit_for_all_its_rate_keys(api):
    put(api, f"{TENANTS}/acme/limits", {"max_concurrency": 2})
    for key in ("one", "two", "three", None):
        limit = {"key": key, "concurrency": 5} if key else None
        for _ in range(2):
            of("acme").pushed(rate_limit=limit)
    other = of("other").pushed(rate_limit={"key": "one", "concurrency": 5})

    first = api.fetch(count=20)

    assert len(first) == 3
    assert other in {job["id"] for job in first}
    assert api.fetch(count=20) == []


def test_the_limits_of_others_cost_a_tenant_nothing(api):
    def asked(**job):
        with CaptureQueriesContext(connection) as queries:
            jobs.enqueue("a.b", **job)
        return len(queries)

    jobs.enqueue("a.b")
    before = asked()
    put(api, f"{TENANTS}/other/limits", {"max_queue_depth": 1, "max_concurrency": 1})
    jobs.enqueue("a.b")

    assert asked() == asked(**meta("acme")) == before
    assert not Queue.objects.filter(has_tenants=True).exists()


# Turns


def share_out(api, **policy):
    config = {"tenant_fairness": {"enabled": True} | policy}
    assert put(api, f"{V1}/queues/default/config", config).status_code == 200


def order(api, count):
    return "".join(api.fetch()[0]["meta"].get("tenant_id", "-")[0] for _ in range(count))


def test_a_noisy_tenant_delays_a_quiet_one_by_one_job(api):
    share_out(api)
    jobs.enqueue_many([{"type": "a.b", "args": [i], **meta("noisy")} for i in range(50)])
    api.fetch()
    quiet = of("quiet").pushed()

    assert quiet in {job["id"] for job in api.fetch(count=2)}
    jobs.enqueue_many([{"type": "a.b", "args": [i], **meta("quiet")} for i in range(3)])
    jobs.enqueue_many([{"type": "a.b", "args": [i], **meta("third")} for i in range(3)])
    assert sorted(order(api, 3)) == ["n", "q", "t"]
    taken = api.fetch(count=6)
    assert sorted(job["meta"]["tenant_id"][0] for job in taken) == list("nnqqtt")


def test_weights_are_shares_of_the_turns(api):
    put(api, f"{TENANTS}/big", {"fairness_weight": 3})
    share_out(api, weights={"tenant:small": 0.5})
    for name in ("big", "middle", "small"):
        jobs.enqueue_many([{"type": "a.b", "args": [i], **meta(name)} for i in range(30)])

    taken = order(api, 27)

    assert (taken.count("b"), taken.count("m"), taken.count("s")) == (18, 6, 3)


def test_a_high_priority_comes_before_any_turn(api):
    share_out(api)
    jobs.enqueue_many([{"type": "a.b", "args": [i], **meta("low")} for i in range(3)])
    jobs.enqueue_many(
        [{"type": "a.b", "args": [i], "priority": 5, **meta("high")} for i in range(3)]
    )

    assert order(api, 6) == "hhhlll"


def test_jobs_without_a_tenant_have_their_turn_as_well(api):
    old = api.pushed()
    share_out(api)
    jobs.enqueue_many([{"type": "a.b", "args": [i], **meta("noisy")} for i in range(20)])
    new = api.pushed()

    assert {old, new} <= {job["id"] for job in api.fetch(count=4)}
    assert Job.objects.get(pk=new).project == "_default"


def test_a_shared_queue_keeps_its_other_limits(api):
    share_out(api)
    put(api, f"{V1}/queues/default/config", {"concurrency": 3})
    limit = {"key": "api", "concurrency": 1}
    for name in ("acme", "other"):
        for _ in range(3):
            of(name).pushed(rate_limit=limit, type="a.limited")
        of(name).pushed()

    taken = api.fetch(count=9)

    assert len(taken) == 3
    assert sorted(job["type"] for job in taken) == ["a.limited", "a.limited", "email.send"]


def test_a_rate_limit_belongs_to_the_tenant_of_its_jobs(api):
    limit = {"key": "api", "concurrency": 1}
    for name in ("acme", "other"):
        for _ in range(2):
            of(name).pushed(rate_limit=limit)
    api.pushed(rate_limit=limit)

    assert len(api.fetch(count=9)) == 3
    keys = [line["key"] for line in api.see("rate-limits").json()["items"]]
    assert keys == ["acme@api", "api", "other@api"]
    assert api.see("rate-limits/acme@api").json()["waiting_count"] == 1
    assert put(api, f"{V1}/rate-limits/acme@api", {"concurrency": 2}).status_code == 200
    assert len(api.fetch(count=9)) == 1


def test_a_worker_of_one_tenant_gets_only_its_jobs_from_a_shared_queue(api):
    share_out(api)
    of("noisy").pushed()
    mine = of("acme").pushed()

    assert [job["id"] for job in of("acme").fetch(count=9)] == [mine]


def test_a_queue_that_is_no_longer_shared_is_as_any_other(api):
    share_out(api)
    put(api, f"{V1}/queues/default/config", {"tenant_fairness": None})

    queue = Queue.objects.get()
    assert (queue.has_tenants, queue.is_guarded, queue.config) == (False, False, {})


# The Admin API


def test_tenants_are_made_changed_listed_and_deleted(api):
    limits = {"max_concurrency": 20, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}}
    made = put(api, f"{TENANTS}/acme", {"limits": limits, "fairness_weight": 10})
    assert (made.status_code, made.json()["tenant"]["limits"]) == (201, limits)
    changed = put(api, f"{TENANTS}/acme/limits", {"max_concurrency": 5, "reason": "an incident"})
    assert (changed.status_code, changed.json()["limits"]["max_concurrency"]) == (200, 5)
    assert OperatorAction.objects.latest("pk").reason == "an incident"
    of("by-its-jobs").pushed()

    lines = api.see("admin/tenants").json()["items"]
    assert [line["tenant_id"] for line in lines] == ["acme", "by-its-jobs"]
    assert [line["jobs"]["available"] for line in lines] == [0, 1]
    assert api.get(f"{TENANTS}/acme").json()["fairness_weight"] == 10
    assert api.get(f"{TENANTS}/by-its-jobs").json()["limits"] == {}
    assert api.delete(f"{TENANTS}/acme").json() == {"tenant_id": "acme", "deleted": True}
    assert code(api.get(f"{TENANTS}/acme")) == code(api.delete(f"{TENANTS}/acme"))
    kinds = Event.objects.filter(type__startswith="tenant.").values_list("type", flat=True)
    assert list(kinds) == ["tenant.created", *["tenant.updated"] * 3]


def test_tenants_of_the_settings_are_made_once(settings):
    settings.OJS = {"TENANTS": {"acme": {"limits": {"max_concurrency": 20}}}}
    assert (engine.tenants.declare(), engine.tenants.declare()) == (1, 0)
    engine.tenants.configure("acme", {"max_concurrency": 5})
    engine.tenants.declare()

    assert Tenant.objects.get().limits == {"max_concurrency": 5}
    settings.OJS = {"MULTI_TENANCY": "yes", "TENANTS": {"acme": {"limits": {"max_jobs": 1}}}}
    assert {"ojs.E024", "ojs.E025"} <= {problem.id for problem in run_checks()}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("acme", {"limits": {"max_jobs": 1}}, "limits.max_jobs"),
        ("acme", {"limits": {"max_concurrency": -1}}, "limits.max_concurrency"),
        ("acme", {"fairness_weight": 0}, "fairness_weight"),
        ("acme", {"tenant_id": "other"}, "tenant_id"),
        ("acme", {"max_concurrency": 1}, "max_concurrency"),
        ("acme/limits", {"max_enqueue_rate": {"limit": 1}}, "max_enqueue_rate.period"),
        ("acme/limits", {"fairness_weight": 2}, "fairness_weight"),
        ("a%20b", {}, "tenant_id"),
    ],
)
def test_a_wrong_limit_is_refused_and_changes_nothing(api, path, body, field):
    reply = put(api, f"{TENANTS}/{path}", body)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, field)
    assert not Tenant.objects.exists()


def test_figures_of_a_tenant_are_its_own(api):
    for name in ("acme", "other"):
        JobFactory(project=name, completed=True)
        JobFactory.create_batch(2, project=name)
    JobFactory(project="acme", active=True)
    put(api, f"{TENANTS}/acme/limits", {"max_concurrency": 20, "max_queue_depth": 9})

    stats = api.get(f"{TENANTS}/acme/stats").json()

    assert stats["jobs"]["available"] == 2
    assert (stats["jobs"]["active"], stats["jobs"]["completed_24h"]) == (1, 1)
    assert stats["limits"]["max_concurrency"] == {"limit": 20, "current": 1}
    assert stats["limits"]["max_queue_depth"] == {"limit": 9, "current": 2}
    share = {"weight": 1.0, "effective_share": 0.5, "actual_share": 0.5}
    assert stats["fairness"] == share
    found = api.get(f"{TENANTS}/acme/jobs", {"state": "available"}).json()
    assert found["pagination"]["total"] == 2
    assert of("acme").see("queues/default").json()["stats"]["available"] == 2


def test_metrics_have_a_label_for_each_tenant_up_to_a_number(api, monkeypatch):
    monkeypatch.setattr("jobs.record.tenants.MOST", 2)
    for name in ("a", "b", "c", "d"):
        JobFactory(project=name, queue="mail")
    JobFactory(project="d", active=True)
    Tenant.objects.create(pk="d")

    lines = api.get(f"{V1}/metrics").content.decode().splitlines()

    depth = 'ojs_tenant_queue_depth{queue="mail",tenant_id="%s"} %s'
    for name, number in (("d", "1.0"), ("a", "1.0"), ("_other", "2.0")):
        assert depth % (name, number) in lines
    assert 'ojs_tenant_jobs_active{queue="default",tenant_id="d"} 1.0' in lines
