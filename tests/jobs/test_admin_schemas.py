"""Job schemas in the admin: compared before they are registered, shown, enforced, deleted."""

from __future__ import annotations

import json

import pytest
from django.urls import reverse
from django.utils.html import strip_tags

import jobs
from jobs import schemas
from jobs.admin import schema
from jobs.engine import schemas as registry
from jobs.models import JobSchema, OperatorAction
from tests.factories import WorkerFactory
from tests.operators import UNSTORABLE, answer, choose, forms, list_of, operator, viewer

pytestmark = pytest.mark.django_db
LIST = "ojs_jobs_jobschema"
ADD = reverse(f"admin:{LIST}_add")
ONE = {"type": "object", "properties": {"to": {"type": "string"}}}
MORE = {"type": "object", "properties": {"to": {"type": "string"}, "cc": {"type": "string"}}}
OTHER = {"type": "object", "properties": {"to": {"type": "integer"}}}


def text_of(page):
    return " ".join(strip_tags(page.content.decode()).split())


def filled_in(version, schema):
    return {"type": "email.send", "version": version, "schema": json.dumps(schema), "reason": "r"}


def change_page(client, version):
    row = JobSchema.objects.get(type="email.send", version=version)
    return client.get(reverse(f"admin:{LIST}_change", args=[row.pk]))


def test_a_schema_is_compared_first_and_registered_when_the_report_was_seen():
    schemas.register("email.send", "1.0.0", ONE)
    client = operator()

    report = client.post(ADD, filled_in("1.1.0", MORE))

    assert "Compared with version 1.0.0." in text_of(report)
    assert "It is compatible" in text_of(report)
    assert JobSchema.objects.count() == 1
    form = next(form for form in forms(report) if "compared" in form.fields).fields
    # Something else than what was compared.
    client.post(ADD, form | filled_in("1.1.0", ONE))
    assert JobSchema.objects.count() == 1
    client.post(ADD, form | filled_in("1.1.0", MORE))
    assert schemas.versions("email.send") == ["1.1.0", "1.0.0"]
    action = OperatorAction.objects.get()
    assert (action.verb, action.reason) == ("manage_schema", "r")


def test_a_breaking_schema_is_reported_and_cannot_be_registered_as_a_minor_version():
    schemas.register("email.send", "1.0.0", ONE)
    client = operator()

    report = client.post(ADD, filled_in("1.1.0", OTHER))

    assert "Type of field 'to' changed from string to integer" in report.content.decode().replace(
        "&#x27;", "'"
    )
    assert "needs a higher major version" in text_of(report)
    assert all("compared" not in form.fields for form in forms(report))
    major = client.post(ADD, filled_in("2.0.0", OTHER))
    assert any("compared" in form.fields for form in forms(major))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": '{"type": "text"}'}, "at /type"),
        ({"version": "new"}, "must be a version"),
        ({"type": "no type"}, "must match"),
        ({"schema": "{"}, "This is not valid JSON"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(change, message):
    page = operator().post(ADD, filled_in("1.0.0", ONE) | change)

    assert message in text_of(page)
    assert not JobSchema.objects.exists()


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE)
def test_a_schema_that_the_api_does_not_store_is_refused_at_its_field(value):
    page = operator().post(ADD, filled_in("1.0.0", ONE) | {"schema": f'{{"examples": [{value}]}}'})

    assert list(page.context["form"].errors) == ["schema"]
    assert not JobSchema.objects.exists()


def test_a_version_shows_what_it_changed_and_who_uses_it(django_assert_max_num_queries):
    schemas.register("email.send", "1.0.0", ONE)
    schemas.register("email.send", "2.0.0", OTHER)
    schemas.set_mode("strict", type="email.send", queue="mail")
    WorkerFactory(worker_id="new-1", job_versions={"email.send": [2 * 10**9, None]})
    jobs.enqueue("email.send", [{"to": 1}], version="2.0")
    jobs.enqueue("email.send", [{"to": "x"}])
    client = viewer()

    with django_assert_max_num_queries(25):
        page = change_page(client, "2.0.0")
    shown = text_of(page)

    assert "1.0.0" in shown
    assert "changed from string to integer" in shown
    assert '- "type": "string"' in shown.replace("&quot;", '"')
    assert "new-1" in shown
    assert "1 of this version, 1 without a version, 0 of other versions; 1 do not match" in shown
    assert "mail: strict" in shown
    assert "latest" in text_of(client.get(list_of(LIST)))


def test_only_the_newest_jobs_are_asked_who_uses_a_version(monkeypatch):
    monkeypatch.setattr(schema, "NEWEST", 3)
    schemas.register("email.send", "1.0.0", ONE)
    for _number in range(4):
        jobs.enqueue("email.send", [{"to": "x"}])
    jobs.enqueue("other", [])

    shown = text_of(change_page(viewer(), "1.0.0"))

    assert "0 of this version, 2 without a version" in shown


def test_validation_is_set_and_schemas_are_deleted_unless_workers_declare_them():
    for version in ("1.0.0", "2.0.0"):
        schemas.register("email.send", version, {"title": version})
    WorkerFactory(worker_id="w", job_versions={"email.send": [2 * 10**9, None]})
    one, two = JobSchema.objects.order_by("pk")
    client = operator()

    chosen = choose(client, LIST, "set_mode", one)
    page = answer(client, chosen, mode="strict", queue="A B", reason="r")
    assert "field must match" in text_of(page) and registry.modes() == {}
    answer(client, choose(client, LIST, "set_mode", one), mode="strict", queue="", reason="r")
    page = answer(client, choose(client, LIST, "remove", one, two), reason="r")

    assert schemas.versions("email.send") == ["2.0.0"]
    assert "live workers declare" in text_of(page)
    assert OperatorAction.objects.filter(verb="manage_schema").count() == 2
    assert registry.modes() == {("email.send", ""): "strict"}
