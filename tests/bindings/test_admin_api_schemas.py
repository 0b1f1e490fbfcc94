"""Schemas of job types over the Admin API (OJS job versioning §6.1, §11)."""

from __future__ import annotations

import pytest

from jobs.models import JobSchema, OperatorAction
from tests.ojs_client import V1, refusal

TEXTS = {"type": "array", "items": {"type": "string"}}
INVOICE = {
    "type": "invoice.generate",
    "version": "2.0",
    "args_schema": TEXTS,
    "compatible_with": ["1.0"],
}

pytestmark = pytest.mark.django_db


def put(api, number, of="invoice.generate", /, **body):
    path = f"{V1}/admin/schemas/{of}/{number}"
    return api.put(path, data=body, content_type="application/json")


def test_the_registration_of_the_document_is_kept_and_found(api):
    reply = put(api, "2.0", **INVOICE)

    assert reply.status_code == 201
    found = api.see("admin/schemas/invoice.generate/2.0").json()
    assert found == reply.json()
    assert {name: found[name] for name in INVOICE} == INVOICE
    assert found["schema"] == TEXTS
    assert OperatorAction.objects.get().selection == {"registered": "invoice.generate@2.0"}


def test_a_second_registration_replaces_the_first_however_the_version_is_spelt(api):
    put(api, "2.0", schema=TEXTS)

    assert put(api, "2", schema={"type": "object"}).status_code == 200
    found = api.see("admin/schemas/invoice.generate/2.0").json()
    assert (found["version"], found["schema"]) == (2, {"type": "object"})


def test_versions_are_listed_newest_first_beside_the_latest_schema(api):
    for version in ("1.9", "1.10", "0.9"):
        put(api, version, schema={"title": version})
    put(api, "7.0", "another", schema=TEXTS)

    found = api.see("admin/schemas/invoice.generate").json()
    assert [line["version"] for line in found["versions"]] == ["1.10", "1.9", "0.9"]
    assert [line["is_latest"] for line in found["versions"]] == [True, False, False]
    assert (found["version"], found["schema"]) == ("1.10", {"title": "1.10"})
    assert api.see("admin/schemas/invoice.generate/versions").json() == found


def test_a_deleted_schema_is_gone_and_the_one_before_is_the_latest(api):
    for version in ("1", "2"):
        put(api, version, schema=TEXTS)

    reply = api.delete(f"{V1}/admin/schemas/invoice.generate/2")

    assert reply.json() == {"type": "invoice.generate", "version": 2, "deleted": True}
    assert api.see("admin/schemas/invoice.generate").json()["version"] == 1
    assert api.see("admin/schemas/invoice.generate/2").status_code == 404
    assert api.delete(f"{V1}/admin/schemas/invoice.generate/2").status_code == 404
    assert api.see("admin/schemas/never.heard.of").status_code == 404


@pytest.mark.parametrize(
    ("version", "body", "field"),
    [
        ("1", {}, "schema"),
        ("1", {"schema": {}}, "schema"),
        ("1", {"schema": ["string"]}, "schema"),
        ("1", {"schema": {"title": "x" * 65_536}}, "schema"),
        ("1", {"schema": TEXTS, "compatible_with": ["old"]}, "compatible_with[0]"),
        ("latest", {"schema": TEXTS}, "version"),
        ("1.2.3.4", {"schema": TEXTS}, "version"),
    ],
)
def test_what_is_no_schema_or_version_is_refused(api, version, body, field):
    assert refusal(put(api, version, **body))["details"]["field"] == field
    assert not JobSchema.objects.exists()


def test_a_type_must_be_one(api):
    assert refusal(put(api, "1", "no type", schema=TEXTS))["details"]["field"] == "type"
