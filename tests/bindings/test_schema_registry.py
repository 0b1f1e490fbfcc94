"""Schema registry over HTTP (OJS schema registry §4, §7, §8; OJS HTTP §15), and a story."""

from __future__ import annotations

from urllib.parse import quote

import pytest

import jobs
from jobs import schemas
from jobs.models import CronJob, Job, JobSchema, OperatorAction
from tests.flare_client import FlareClient
from tests.ojs_client import MEDIA_TYPE, V1, OJSClient, refusal

pytestmark = pytest.mark.django_db

INVOICE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["customer_id", "amount"],
    "properties": {"customer_id": {"type": "string"}, "amount": {"type": "integer"}},
}
WITH_CURRENCY = INVOICE | {
    "required": [*INVOICE["required"], "currency"],
    "properties": INVOICE["properties"] | {"currency": {"type": "string"}},
}
WITH_NOTES = INVOICE | {"properties": INVOICE["properties"] | {"notes": {"type": "string"}}}
VALIDATION = f"{V1}/admin/schema-validation"


def register(api, version="1.0.0", schema=INVOICE, **more):
    document = {"job_type": "invoice.generate", "version": version, "schema": schema}
    return api.send("schemas", document | more)


def set_mode(api, mode, **target):
    return api.put(VALIDATION, data=target | {"mode": mode}, content_type="application/json")


def test_a_schema_is_registered_and_found_by_type_version_and_uri(api):
    reply = register(api, "2.0.0")

    assert reply.status_code == 201
    whole = reply.json()["schema"]
    assert whole["job_type"] == whole["type"] == "invoice.generate"
    assert (whole["version"], whole["schema"]) == ("2.0.0", INVOICE)
    assert whole["uri"] == "urn:ojs:schema:invoice.generate:v2.0.0"
    uri = quote(whole["uri"], safe="")
    for path in ("invoice.generate", "invoice.generate/2.0.0", "invoice.generate/2", uri):
        assert api.see(f"schemas/{path}").json() == {"schema": whole}
    assert OperatorAction.objects.get().selection == {"registered": "invoice.generate@2.0.0"}


def test_the_request_of_the_http_binding_is_taken_as_well(api):
    uri = "https://example.com/schemas/email.json"
    sent = {"uri": uri, "type": "email.send", "version": 1, "schema": {"type": "array"}}

    assert api.send("schemas", sent).json()["schema"]["version"] == 1

    assert api.see(f"schemas/{quote(uri, safe='')}").json()["schema"]["schema"] == sent["schema"]
    reply = api.delete(f"{V1}/schemas/{quote(uri, safe='')}")
    assert (reply.json()["deleted"], reply.json()["uri"]) == (True, uri)
    assert api.see(f"schemas/{quote(uri, safe='')}").status_code == 404


def test_versions_are_listed_newest_first_and_all_schemas_by_pages(api):
    for version in ("1.0.0", "1.10.0", "1.9.0"):
        register(api, version)
    register(api, type="another", job_type=None)

    lines = api.see("schemas/invoice.generate/versions").json()["versions"]
    assert [line["version"] for line in lines] == ["1.10.0", "1.9.0", "1.0.0"]
    assert [line["is_latest"] for line in lines] == [True, False, False]
    first = api.see("schemas", limit=3).json()
    assert [line["version"] for line in first["schemas"]] == ["1.0.0", "1.10.0", "1.9.0"]
    assert (first["pagination"]["total"], first["pagination"]["has_more"]) == (4, True)
    rest = api.see("schemas", cursor=first["pagination"]["next_cursor"]).json()
    assert [line["type"] for line in rest["schemas"]] == ["another"]


def test_a_second_registration_is_a_conflict_whatever_it_says(api):
    register(api)

    assert register(api).status_code == 409
    assert register(api, "1").status_code == 409
    assert register(api, "1.1.0", uri="urn:ojs:schema:invoice.generate:v1.0.0").status_code == 409
    assert register(api, "1.0.1").status_code == 201


@pytest.mark.parametrize(
    ("change", "details"),
    [
        ({"schema": {"type": "text"}}, {"pointer": "/type"}),
        ({"schema": {"items": [{}]}}, {"pointer": "/items"}),
        ({"schema": {"$ref": "http://192.0.2.1/"}}, {"pointer": "/$ref"}),
        ({"schema": None}, {"field": "schema"}),
        ({"version": "1.0.0-rc.1"}, {"field": "version"}),
        ({"version": None}, {"field": "version"}),
        ({"job_type": None}, {"field": "job_type"}),
        ({"job_type": "no type"}, {"field": "job_type"}),
        ({"type": "another"}, {"field": "type"}),
        ({"uri": "no uri"}, {"field": "uri"}),
    ],
)
def test_an_invalid_registration_is_refused_with_its_place(api, change, details):
    reply = register(api, **change)

    assert reply.status_code == 400
    assert details.items() <= refusal(reply)["details"].items()
    assert not JobSchema.objects.exists()


def test_a_breaking_change_in_a_minor_version_is_refused_and_listed(api):
    register(api, "1.1.0")

    reply = register(api, "1.2.0", WITH_CURRENCY)

    assert reply.status_code == 422
    error = refusal(reply)
    assert error["code"] == "validation_error"
    assert error["details"]["breaking_changes"] == ["Required field 'currency' was added"]
    assert register(api, "2.0.0", WITH_CURRENCY).status_code == 201


def test_a_version_is_deleted_and_the_one_before_is_the_latest(api):
    register(api, "1.0.0")
    register(api, "1.1.0", WITH_NOTES)

    assert api.delete(f"{V1}/schemas/invoice.generate/1.1.0").json()["deleted"] is True

    assert api.see("schemas/invoice.generate").json()["schema"]["version"] == "1.0.0"
    assert api.delete(f"{V1}/schemas/invoice.generate/1.1.0").status_code == 404


def test_warn_is_the_default_and_the_response_has_the_warnings(api):
    register(api)

    reply = api.push(type="invoice.generate", args=[{"amount": "9"}])

    assert reply.status_code == 201
    assert sorted(reply.json()["warnings"]) == [
        "Schema validation warning: /args/0/amount: property 'amount' must be integer, got string",
        "Schema validation warning: /args/0: required property 'customer_id' is missing",
    ]
    assert api.job(reply.json()["job"]["id"])["warnings"] == reply.json()["warnings"]
    # It is the server's member: a copy of the job does not inherit it.
    again = {"warnings": reply.json()["warnings"], "args": [GOOD]}
    assert "warnings" not in api.push(type="invoice.generate", **again).json()


GOOD = {"customer_id": "c", "amount": 1}
BAD = {"customer_id": "c", "amount": "one"}
WRONG = "property 'amount' must be integer, got string"


def test_strict_refuses_over_every_endpoint_that_enqueues(api, settings):
    settings.OJS = {**settings.OJS, "FLARE": {"ENABLED": True}}
    register(api)
    set_mode(api, "strict", type="invoice.generate")
    job = {"type": "invoice.generate", "args": [BAD]}
    fine = {"type": "invoice.generate", "args": [GOOD]}

    replies = [
        api.push(**job),
        api.send("jobs/batch", {"jobs": [fine, job]}),
        api.send("workflows", {"type": "chain", "steps": [fine, job]}),
        api.send("workflows", {"type": "chain", "steps": [fine | {"compensate": job}]}),
        FlareClient().enqueue(job_type="invoice.generate", payload=BAD),
    ]

    for reply in replies:
        assert reply.status_code == 422
        error = reply.json()["error"]
        assert error["code"] == "validation_error"
        assert error["details"]["validation_errors"] == [WRONG]
        assert error["details"]["errors"][0]["pointer"] == "/args/0/amount"
        assert "/args/0/amount" in error["message"]
    assert replies[1].json()["error"]["details"]["index"] == 1
    assert not Job.objects.exists()


def test_a_bulk_request_reports_each_job_that_does_not_match(api):
    register(api)
    set_mode(api, "strict")
    bulk = [{"type": "invoice.generate", "args": [each]} for each in (GOOD, BAD, GOOD)]

    reply = api.send("jobs/bulk", {"jobs": bulk, "atomicity": "partial"})

    assert reply.status_code == 207
    items = reply.json()["items"]
    assert [item["status"] for item in items] == ["created", "failed", "created"]
    assert items[1]["error"]["code"] == "validation_error"


def test_modes_are_shown_and_set_for_types_and_queues(api):
    set_mode(api, "strict", type="a.b")
    set_mode(api, "off", queue="mail")

    reply = set_mode(api, "off")

    assert reply.json() == api.get(VALIDATION).json()
    assert reply.json() == {
        "default_mode": "off",
        "modes": [
            {"type": "", "queue": "mail", "mode": "off"},
            {"type": "a.b", "queue": "", "mode": "strict"},
        ],
    }
    assert set_mode(api, None).json()["default_mode"] == "warn"
    assert refusal(set_mode(api, "lenient"))["details"]["field"] == "mode"
    missing = api.put(VALIDATION, data={"type": "a.b"}, content_type="application/json")
    assert refusal(missing)["details"]["field"] == "mode"


def test_the_admin_api_keeps_lists_of_before_2020_12_in_items_as_sent(api):
    schema = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
    reply = api.put(
        f"{V1}/admin/schemas/data.import/1",
        data={"schema": schema},
        content_type="application/json",
    )
    set_mode(api, "strict")

    assert (reply.status_code, reply.json()["schema"]) == (201, schema)
    assert api.push(type="data.import", args=["a", 1]).status_code == 201
    assert api.push(type="data.import", args=["a", "b"]).status_code == 422


def test_the_manifest_claims_the_registry(api):
    manifest = api.get("/ojs/manifest").json()

    assert manifest["capabilities"]["schema_validation"] is True
    assert "urn:ojs:ext:schema-registry" in manifest["extensions"]


def test_a_schema_changes_while_old_workers_run(api):
    """Old and new producers, old and new workers; nothing is lost, and nothing reaches a worker
    that cannot read it."""
    register(api, "1.0.0")
    set_mode(api, "strict", type="invoice.generate")
    old = {"worker_id": "old", "handlers": [{"type": "invoice.generate", "versions": "<2.0"}]}
    new = {"worker_id": "new", "handlers": [{"type": "invoice.generate", "versions": ">=2.0"}]}
    box = {"hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 9}
    assert api.send("workers/register", box | old).status_code < 300
    first = api.pushed(type="invoice.generate", version="1.0.0", args=[GOOD])

    # A compatible schema is taken while they run; a breaking one is not, in a minor version.
    assert register(api, "1.1.0", WITH_NOTES).status_code == 201
    second = api.pushed(
        type="invoice.generate", version="1.1.0", args=[GOOD | {"notes": "by post"}]
    )
    assert register(api, "1.2.0", WITH_CURRENCY).status_code == 422
    assert register(api, "2.0.0", WITH_CURRENCY).status_code == 201

    # New jobs wait for new workers, and must have the new form; old producers go on.
    assert api.push(type="invoice.generate", version="2.0.0", args=[GOOD]).status_code == 422
    third = api.pushed(type="invoice.generate", version="2.0.0", args=[GOOD | {"currency": "EUR"}])
    fourth = api.pushed(type="invoice.generate", version="1.0.0", args=[GOOD])
    taken = api.fetch(worker_id="old", count=9)
    assert {job["id"] for job in taken} == {first, second, fourth}
    in_use = api.delete(f"{V1}/schemas/invoice.generate/1.0.0")
    assert in_use.status_code == 409
    assert in_use.json()["error"]["details"]["workers"] == ["old"]

    assert api.send("workers/register", box | new).status_code < 300
    assert [job["id"] for job in api.fetch(worker_id="new", count=9)] == [third]
    for job in taken:
        assert api.ack(job["id"], worker_id="old").status_code == 200
    assert api.send("workers/deregister", {"worker_id": "old"}).status_code < 300
    assert api.delete(f"{V1}/schemas/invoice.generate/1.0.0").status_code == 200


def test_python_and_http_share_one_registry(api):
    schemas.register("a.b", "1.0.0", {"type": "array"})

    assert api.see("schemas/a.b").json()["schema"]["schema"] == {"type": "array"}
    assert jobs.enqueue("a.b") is not None


def test_the_sdks_read_every_version_as_a_text(api):
    """The Go SDK cannot read a number; others get it as they sent it (OJS HTTP §15)."""
    sdk = OJSClient(**{"OJS-Version": "1.0"})

    made = register(sdk, version="1")

    assert made.json()["schema"]["version"] == "1"
    whole = {
        "schemas/invoice.generate": "schema",
        "schemas/invoice.generate/1": "schema",
        "schemas": "schemas",
        "schemas/invoice.generate/versions": "versions",
        "admin/schemas/invoice.generate": "versions",
    }
    for client, version in ((sdk, "1"), (api, 1)):
        for path, name in whole.items():
            found = client.see(path).json()[name]
            (line,) = found if isinstance(found, list) else [found]
            assert line["version"] == version
        assert client.see("admin/schemas/invoice.generate/1").json()["version"] == version
    assert sdk.delete(f"{V1}/schemas/invoice.generate/1").json()["version"] == "1"


def test_strict_refuses_a_schedule_when_it_is_registered(api):
    schedule = {"name": "nightly", "cron": "0 3 * * *", "type": "invoice.generate", "args": [1]}
    api.send("cron", schedule)
    register(api, schema={"type": "array", "items": {"type": "string"}})
    set_mode(api, "strict", type="invoice.generate")

    reply = api.send("cron", schedule | {"name": "weekly"})

    assert (reply.status_code, refusal(reply)["code"]) == (422, "validation_error")
    assert list(CronJob.objects.values_list("pk", flat=True)) == ["nightly"]
    change = {"job_template": {"args": [2]}}
    assert api.patch(f"{V1}/cron/nightly", change, MEDIA_TYPE).status_code == 422
    assert CronJob.objects.get().template["args"] == [1]
    # One that was accepted before there was a schema may be registered again, and each run fails.
    assert api.send("cron", schedule | {"cron": "0 4 * * *"}).status_code == 200
    assert api.send("cron/nightly/trigger").json()["job_id"] is None
    assert api.send("cron", schedule | {"name": "weekly", "args": ["a"]}).status_code == 201
