"""What public clients ask for beyond the verbs: other addresses, headers, replies, lists."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest

from jobs.models import CronJob, Job, Maintenance, RateLimit, Workflow
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago
from tests.ojs_client import MEDIA_TYPE, V1, OJSClient, refusal
from workers.models import Worker

# Workers


def test_an_ack_is_answered_about_its_job_wherever_it_was_sent(api):
    for path in ("workers/ack", "jobs/{}/ack"):
        job_id = api.pushed()
        api.fetch()
        reply = api.send(path.format(job_id), {"job_id": job_id})
        assert reply.json()["job"] == {"id": job_id, "state": "completed", "attempt": 1}
    for path in ("workers/nack", "jobs/{}/nack"):
        job_id = api.pushed()
        api.fetch()
        body = {"job_id": job_id, "error": {"code": "broken", "message": "It broke."}}
        reply = api.send(path.format(job_id), body)
        assert reply.json()["job"] == {"id": job_id, "state": "retryable", "attempt": 1}


def test_the_health_of_a_worker_is_that_of_its_last_heartbeat(api):
    api.send("workers/heartbeat", {"worker_id": "eu/w-1", "state": "running"})
    api.pushed()
    api.fetch(worker_id="eu/w-1")

    found = api.see("workers/eu/w-1/health").json()
    assert (found["worker_id"], found["status"], found["ready"]) == ("eu/w-1", "healthy", True)
    assert (found["state"], found["active_jobs"]) == ("running", 1)

    api.send("workers/heartbeat", {"worker_id": "eu/w-1", "state": "quiet"})
    found = api.see("workers/eu/w-1/health").json()
    assert (found["status"], found["ready"], found["state"]) == ("healthy", False, "quiet")

    Worker.objects.update(last_heartbeat_at=ago(3600))
    found = api.see("workers/eu/w-1/health").json()
    assert (found["status"], found["ready"], found["state"]) == ("unhealthy", False, "terminated")
    assert refusal(api.see("workers/nobody/health"))["code"] == "not_found"


# Addresses of the admin UI and the command line


def test_the_admin_ui_finds_cron_jobs_under_its_own_address(api):
    api.send("cron", {"name": "nightly", "cron": "@daily", "type": "a.b", "args": []})

    (listed,) = api.see("crons").json()["items"]
    assert (listed["id"], listed["schedule"], listed["enabled"]) == ("nightly", "@daily", True)
    changed = api.patch("/ojs/v1/crons/nightly", {"enabled": False}, "application/json")
    assert changed.json()["enabled"] is False
    assert api.see("crons/nightly").json()["status"] == "paused"
    assert api.delete("/ojs/v1/crons/nightly").status_code == 200
    assert not CronJob.objects.exists()


def test_the_command_line_finds_maintenance_and_configuration_under_its_own_addresses(api):
    for name in ("maintenance", "config"):
        assert api.see(f"admin/{name}").json() == api.see(f"admin/system/{name}").json()

    api.send("admin/maintenance", {"enabled": True, "reason": "new disks"})

    assert api.see("admin/system/maintenance").json()["maintenance"] is True


# Rate limits


def test_an_operator_overrides_a_rate_limit_before_its_first_job(api):
    """OJS rate limiting §10.2."""
    sent = {"concurrency": 1}
    reply = api.put("/ojs/v1/rate-limits/stripe", sent, content_type="application/json")
    assert reply.status_code == 200
    assert reply.json()["concurrency"] == {"limit": 1, "active": 0, "available": 1}

    for _ in range(2):
        api.pushed(rate_limit={"key": "stripe", "concurrency": 5})

    assert len(api.fetch(count=5)) == 1
    assert api.see("rate-limits/stripe").json()["concurrency"]["limit"] == 1


def test_what_can_be_no_key_of_a_rate_limit_is_not_overridden(api):
    reply = api.put("/ojs/v1/rate-limits/-x", {"concurrency": 1}, content_type="application/json")

    assert refusal(reply)["details"]["field"] == "key"
    assert not RateLimit.objects.exists()


# Headers (OJS HTTP §6.5)


@pytest.mark.parametrize(
    "path",
    ["manifest", "v1/health", "v1/ready", "v1/metrics", "v1/docs", "v1/openapi.json", "v1/nowhere"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
def test_every_answer_has_the_standard_headers(api, method, path):
    reply = api.generic(method, f"/ojs/{path}", headers={"X-Request-Id": "req-7"})

    assert (reply["OJS-Version"], reply["X-Request-Id"]) == ("1.0", "req-7")


# Queries


@pytest.mark.parametrize(
    ("path", "wrong", "right"),
    [
        ("events", "tpye", "types"),
        ("jobs", "status", "state"),
        ("workflows", "status", "state"),
        ("cron", "active", "enabled"),
        ("dead-letter", "job_type", "type"),
        ("queues", "lmit", "limit"),
        ("admin/jobs", "job_type", "type"),
        ("admin/workers", "status", "state"),
        ("admin/queues", "status", "state"),
        ("admin/stats/history", "interval", "period"),
        ("autoscaling", "queue", "queues"),
    ],
)
def test_a_misspelt_parameter_is_refused_and_those_there_are_named(api, path, wrong, right):
    error = refusal(api.see(path, **{wrong: "x"}))

    assert (error["code"], error["details"]["field"]) == ("invalid_request", wrong)
    assert right in error["message"]


@pytest.mark.parametrize("is_fast", [True, False])
def test_it_is_refused_on_the_fast_path_as_well(api, settings, is_fast):
    settings.OJS = settings.OJS | {"FAST_PATH": is_fast}
    job_id = api.pushed()

    reply = api.see(f"jobs/{job_id}/result", wiat="true")

    assert refusal(reply)["details"]["field"] == "wiat"


@pytest.mark.parametrize("is_fast", [True, False])
def test_an_enqueue_with_a_parameter_is_refused_and_stores_nothing(api, settings, is_fast):
    settings.OJS = settings.OJS | {"FAST_PATH": is_fast}

    reply = api.send("jobs?queue=mail", {"type": "a.b", "args": []})

    error = refusal(reply)
    assert (error["code"], error["details"]["field"]) == ("invalid_request", "queue")
    assert error["message"] == "There is no parameter 'queue'; this endpoint takes none."
    assert not Job.objects.exists()


def test_a_wrong_method_is_still_answered_as_one(api):
    assert api.put("/ojs/v1/jobs?queue=mail").status_code == 405


def test_a_query_with_too_many_parameters_is_the_clients_mistake(api):
    reply = api.get(f"/ojs/v1/jobs?{'limit=1&' * 1001}")

    assert refusal(reply)["code"] == "invalid_request"


# Bodies of operators


DESTRUCTIVE = [
    ("DELETE", "dead-letter", {"confirm": True, "quue": "x"}, "quue"),
    ("DELETE", "admin/dead-letter", {"confirm": True, "older_then": "2020-01-01"}, "older_then"),
    (
        "DELETE",
        "admin/queues/mail/jobs",
        {"states": ["completed"], "older_then": "2020-01-01", "confirm": True},
        "older_then",
    ),
    ("POST", "jobs/bulk/cancel", {"filter": {"queue": "mail"}, "dryrun": True}, "dryrun"),
    ("POST", "jobs/bulk/delete", {"filter": {"queue": "mail"}, "dryrun": True}, "dryrun"),
    (
        "POST",
        "admin/jobs/bulk/delete",
        {"filter": {"queue": "mail"}, "confirm": True, "dryrun": True},
        "dryrun",
    ),
    ("DELETE", "queues/mail", {"strategy": "discard", "target": "x"}, "target"),
]


@pytest.mark.parametrize(("method", "path", "body", "wrong"), DESTRUCTIVE)
def test_a_misspelt_member_of_a_destructive_request_is_refused_and_nothing_happens(
    api, method, path, body, wrong
):
    QueueFactory(name="mail")
    for trait in ({}, {"dead": True}, {"completed": True}):
        JobFactory(queue="mail", finished_at=ago(60) if trait else None, **trait)
    before = sorted(Job.objects.values_list("pk", "state"))

    error = refusal(api.generic(method, f"{V1}/{path}", orjson.dumps(body), MEDIA_TYPE))

    assert (error["code"], error["details"]["field"]) == ("invalid_request", wrong)
    assert wrong in error["message"]
    assert sorted(Job.objects.values_list("pk", "state")) == before


def test_a_misspelt_limit_does_not_take_the_override_away(api):
    api.put(f"{V1}/rate-limits/stripe", {"concurrency": 0}, MEDIA_TYPE)

    reply = api.put(f"{V1}/rate-limits/stripe", {"concurency": 0}, MEDIA_TYPE)

    assert refusal(reply)["details"]["field"] == "concurency"
    assert RateLimit.objects.get().override == {"concurrency": 0}


PACE = {"limit": 5, "period": "PT1M"}


@pytest.mark.parametrize(
    ("path", "body", "wrong"),
    [
        ("queues/mail/config", {"rate_limit": PACE | {"burts": 2}}, "rate_limit.burts"),
        ("queues/mail/config", {"rate_limit": {"rate": PACE | {"burst": 2}}}, "rate.burst"),
        ("queues/mail/config", {"default_retry": {"max_atempts": 9}}, "default_retry.max_atempts"),
        ("admin/queues/mail/rate-limit", {"throtle": PACE}, "throtle"),
        ("rate-limits/stripe", {"throttle": PACE | {"windw": "fixed"}}, "throttle.windw"),
        ("admin/pools/night", {"queues": {"mail": {"wieght": 3}}}, "mail.wieght"),
        (
            "admin/tenants/acme/limits",
            {"max_enqueue_rate": PACE | {"burst": 2}},
            "max_enqueue_rate.burst",
        ),
    ],
)
def test_so_is_one_deep_in_a_configuration(api, path, body, wrong):
    error = refusal(api.put(f"{V1}/{path}", body, MEDIA_TYPE))

    assert (error["code"], error["details"]["field"].endswith(wrong)) == ("invalid_request", True)


def test_so_is_one_in_the_policy_of_a_job_that_is_retried(api):
    job = JobFactory(dead=True)

    override = {"override": {"retry": {"max_atempts": 1}}}
    reply = api.send(f"dead-letter/{job.pk}/retry", override)

    assert refusal(reply)["details"]["field"] == "override.retry.max_atempts"
    assert Job.objects.get().state == "discarded"


def test_a_rate_limit_may_be_sent_back_as_the_admin_api_shows_it(api):
    """It shows a simple limit twice (OJS admin API §6.2)."""
    config = {"rate_limit": {"rate": PACE, "throttle": PACE}}
    api.put(f"{V1}/queues/mail/config", config, MEDIA_TYPE)
    shown = api.see("admin/queues/mail").json()["configuration"]
    assert shown["rate_limit"]["limit"] == 5

    api.put(f"{V1}/queues/mail/config", shown, MEDIA_TYPE)

    assert api.see("queues/mail/config").json()["config"] == config
    shown["rate_limit"]["limit"] = 6
    reply = api.put(f"{V1}/queues/mail/config", shown, MEDIA_TYPE)
    assert refusal(reply)["details"]["field"] == "rate_limit.rate"


def test_the_public_command_line_says_how_large_a_queue_it_creates_may_be(api):
    reply = api.send("queues", {"name": "mail", "concurrency": 5, "max_size": 100})

    assert reply.status_code == 201
    config = api.see("queues/mail/config").json()["config"]
    assert (config["concurrency"], config["max_size"]) == (5, 100)
    twice = {"name": "post", "concurrency": 5, "config": {"concurrency": 6}}
    assert refusal(api.send("queues", twice))["details"]["field"] == "concurrency"


def test_the_public_admin_ui_says_how_long_maintenance_will_take(api):
    api.send("admin/system/maintenance", {"enabled": True, "reason": "disks", "duration": "1h"})

    switch = Maintenance.objects.get()
    assert switch.estimated_until - switch.since == timedelta(hours=1)
    assert switch.until is None


def test_a_schema_may_name_what_the_path_names_and_nothing_else(api):
    """OJS job versioning §6.1."""
    path = f"{V1}/admin/schemas/invoice.generate/2.0"
    body = {"type": "invoice.generate", "version": "2", "args_schema": {"type": "array"}}

    assert api.put(path, body, MEDIA_TYPE).status_code == 201
    for wrong in ({"type": "invoice.send"}, {"version": "2.1"}):
        reply = api.put(path, body | wrong, MEDIA_TYPE)
        assert refusal(reply)["details"]["field"] in wrong


def test_metrics_have_the_format_that_is_asked_for(api):
    """The public command line sends the parameter."""
    accept = {"Accept": "application/openmetrics-text"}

    found = api.get("/ojs/v1/metrics?format=prometheus", headers=accept)

    assert (found.status_code, found["Content-Type"]) == (200, "text/plain")
    assert refusal(api.see("metrics", format="json"))["details"]["field"] == "format"


def test_pages_have_numbers_where_a_client_asks_for_them_so(api):
    """The JavaScript SDK and the admin UI do."""
    for name in ("a", "b", "c"):
        api.send("cron", {"name": name, "cron": "@daily", "type": "a.b", "args": []})

    found = api.see("cron", page=2, per_page=2).json()

    assert [cron["name"] for cron in found["items"]] == ["c"]
    assert found["pagination"]["offset"] == 2
    assert refusal(api.see("cron", page=0))["details"]["field"] == "page"


# Lists of jobs


def listed(api: OJSClient, **query: object) -> list[str]:
    reply = api.see("jobs", **query)
    assert reply.status_code == 200, reply.content
    return [job["id"] for job in reply.json()["jobs"]]


def test_jobs_are_listed_newest_first_and_filtered(api):
    mail = api.pushed(type="email.send", queue="mail")
    text = api.pushed(type="text.send", queue="mail")
    dead = JobFactory(state="discarded", finished_at=ago(1), type="email.old", queue="other")

    assert listed(api) == sorted([mail, text, str(dead.pk)], reverse=True)
    assert listed(api, queue="mail") == [text, mail]
    assert listed(api, type="text.send") == [text]
    assert listed(api, type="email.*", queue="mail") == [mail]
    assert listed(api, state="discarded") == [str(dead.pk)]
    assert listed(api, state="available,discarded", queue="other") == [str(dead.pk)]
    assert refusal(api.see("jobs", state="lost"))["details"]["field"] == "state"


def test_jobs_are_listed_page_by_page(api):
    ids = [api.pushed() for _ in range(5)]

    seen, query = [], {"limit": 2}
    while True:
        page = api.see("jobs", **query).json()
        seen += [job["id"] for job in page["jobs"]]
        assert page["total"] == page["pagination"]["total"] == 5
        if not page["pagination"]["has_more"]:
            break
        query["cursor"] = page["pagination"]["next_cursor"]

    assert seen == ids[::-1]


def test_the_retries_of_a_job_are_listed_with_its_policy(api):
    job = JobFactory(
        state="retryable", attempt=2, max_attempts=7, retry={"max_attempts": 7, "jitter": False}
    )
    JobErrorFactory(job=job, attempt=1, type="Timeout")
    JobErrorFactory(job=job, attempt=2, type="Refused")

    found = api.see(f"jobs/{job.pk}/retries").json()

    assert [entry["type"] for entry in found["retries"]] == ["Timeout", "Refused"]
    assert (found["policy"]["max_attempts"], found["policy"]["jitter"]) == (7, False)
    assert (found["job_id"], found["attempt"], found["total"]) == (str(job.pk), 2, 2)
    unknown = "019414d4-0000-7000-8000-000000000000"
    assert refusal(api.see(f"jobs/{unknown}/retries"))["code"] == "not_found"


# Options that would be ignored

STEP = {"type": "a.b", "args": []}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"workflow_timeout": 60}, "workflow_timeout"),
        ({"options": {"workflow_timeout": 60}}, "options.workflow_timeout"),
        ({"failure_policy": "compensate"}, "failure_policy"),
        (
            {"type": "group", "jobs": [STEP | {"compensate_type": "a.undo"}]},
            "jobs[0].compensate_type",
        ),
        ({"steps": [STEP, STEP | {"compensate_args": [1]}]}, "steps[1].compensate_args"),
        ({"steps": [STEP | {"options": {"compensate": STEP}}]}, "steps[0].options.compensate"),
    ],
)
def test_what_a_workflow_cannot_be_promised_is_refused(api, body, field):
    reply = api.send("workflows", {"type": "chain", "steps": [STEP]} | body)

    assert reply.status_code == 422
    error = refusal(reply)
    assert (error["code"], error["details"]["field"]) == ("unsupported", field)
    assert not Workflow.objects.exists()


# Replies of which some clients read the members of `job`, and others those at the top level


def test_a_job_stands_in_both_places_whoever_asks(api):
    """The public command line sends no `OJS-Version`, and reads the top level."""
    made = api.push().json()
    job_id = made["id"]
    workflow = api.send("workflows", {"type": "chain", "steps": [STEP]}).json()

    for reply in (
        made,
        api.see(f"jobs/{job_id}").json(),
        api.delete(f"/ojs/v1/jobs/{job_id}").json(),
    ):
        assert reply["job"]["id"] == reply["id"] == job_id
        assert reply["job"].items() <= reply.items()
    assert workflow["workflow"].items() <= workflow.items()


def test_the_command_line_finds_rate_limits_by_its_own_name(api):
    api.pushed(rate_limit={"key": "stripe", "concurrency": 5})

    found = api.see("rate-limits").json()

    assert [limit["key"] for limit in found["rate_limits"]] == ["stripe"]
    assert found["rate_limits"] == found["items"]


# Queues


@pytest.mark.parametrize("base", ["queues", "admin/queues"])
def test_a_queue_is_drained_and_accepts_jobs_again_when_it_is_resumed(api, base):
    """Queue configuration §5.1."""
    job_id = api.pushed(queue="mail")

    reply = api.send(f"{base}/mail/drain", {})

    assert (reply.status_code, reply.json()["status"]) == (200, "draining")
    assert api.push(queue="mail").status_code == 422
    assert [job["id"] for job in api.fetch("mail")] == [job_id]
    assert api.send(f"{base}/mail/resume", {}).json()["status"] == "active"
    assert api.push(queue="mail").status_code == 201
    assert refusal(api.send(f"{base}/nowhere/drain", {}))["code"] == "not_found"
