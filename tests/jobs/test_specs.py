"""Job specs are registered by a command, over HTTP, and in the admin, and it is recorded."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils.html import strip_tags

from jobs import engine
from jobs.models import JobSpec, OperatorAction
from tests.factories import WorkerFactory
from tests.ojs_client import OJSClient
from tests.operators import confirm, operator, staff

pytestmark = pytest.mark.django_db
LIST = "ojs_jobs_jobspec"


def registered():
    return dict(JobSpec.objects.values_list("type", "checksum"))


def test_a_deployment_registers_from_a_file_and_withdraws(tmp_path, capsys):
    file = tmp_path / "specs.json"
    file.write_text(json.dumps({"email.send": "v2", "image.resize": "v1"}))
    engine.register_specs({"email.send": "v1", "video.cut": "v1"})

    call_command("registerspecs", "--file", str(file), "--forget", "video.cut")

    assert registered() == {"email.send": "v2", "image.resize": "v1"}
    assert "2 registered, 0 as before, 1 withdrawn." in capsys.readouterr().out
    action = OperatorAction.objects.get()
    assert (action.verb, action.source, action.count) == ("register_spec", "shell", 3)

    call_command("registerspecs", "--file", str(file))
    assert OperatorAction.objects.count() == 1, "nothing was changed, so there is nothing to tell"


@pytest.mark.parametrize("words", [[], ["email.send"], ["=v1"], ["--file", "/nowhere"]], ids=str)
def test_a_wrong_command_registers_nothing(words):
    with pytest.raises(CommandError):
        call_command("registerspecs", *words)

    assert registered() == {}


def test_over_http_all_are_registered_or_none(api):
    engine.register_specs({"email.send": "v1"})

    reply = api.send("job-specs", {"specs": {"email.send": "v1", "video.cut": "v1"}})
    assert reply.json() == {"registered": 1, "unchanged": 1}
    wrong = api.send("job-specs", {"specs": {"a.b": "v1", "video.cut": 7}})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["details"]["field"] == "specs.video.cut"

    listed = api.get("/ojs/v1/job-specs").json()["specs"]
    assert [(spec["type"], spec["checksum"]) for spec in listed] == [
        ("email.send", "v1"),
        ("video.cut", "v1"),
    ]
    assert api.delete("/ojs/v1/job-specs/video.cut").json()["deleted"] is True
    assert api.delete("/ojs/v1/job-specs/video.cut").status_code == 404
    assert [action.source for action in OperatorAction.objects.all()] == ["api", "api"]


@pytest.mark.parametrize(
    "body", [None, {}, {"specs": []}, {"specs": {}}, {"specs": {"1 2": "v1"}}, {"specs": {"a": ""}}]
)
def test_bad_specs_are_refused_where_they_are_wrong(api, body):
    reply = api.send("job-specs", body)

    assert reply.status_code == 400
    assert registered() == {}


def test_in_the_admin_a_spec_is_registered_changed_and_withdrawn():
    client = operator()

    client.post(reverse(f"admin:{LIST}_add"), {"type": "email.send", "checksum": "v1"})
    client.post(reverse(f"admin:{LIST}_change", args=["email.send"]), {"checksum": "v2"})

    assert registered() == {"email.send": "v2"}
    confirm(client, LIST, "withdraw", JobSpec.objects.get(), reason="rolled back")
    assert registered() == {}
    actions = list(OperatorAction.objects.order_by("pk").values_list("verb", "source", "reason"))
    verb = ("register_spec", "admin")
    assert actions == [(*verb, ""), (*verb, ""), (*verb, "rolled back")]


def test_who_may_not_register_specs_cannot():
    client = staff("view_jobspec")
    engine.register_specs({"email.send": "v1"})

    page = client.get(reverse(f"admin:{LIST}_changelist"))
    assert client.get(reverse(f"admin:{LIST}_add")).status_code == 403
    change = reverse(f"admin:{LIST}_change", args=["email.send"])
    assert client.post(change, {"checksum": "v2"}).status_code == 403

    assert page.status_code == 200
    assert registered() == {"email.send": "v1"}


def matrix_of(page):
    """The matrix on the page: (type, worker) → content of the cell."""
    found = page.context["matrix"]
    return {
        (row.type, column.workers[0]): strip_tags(str(cell))
        for row in found["rows"]
        for column, cell in zip(found["columns"], row.cells, strict=True)
    }


def test_the_matrix_shows_who_implements_what(admin_client):
    engine.register_specs({"email.send": "v2", "a.match": "v1"})
    WorkerFactory(worker_id="new", specs={"email.send": "v2", "a.match": "v1"})
    WorkerFactory(worker_id="old", specs={"email.send": "v1", "video.cut": "v7"})
    WorkerFactory(worker_id="other", specs=None)
    WorkerFactory(worker_id="gone", specs={"email.send": "v0"}, state="terminated")

    page = admin_client.get(reverse(f"admin:{LIST}_changelist"))

    assert matrix_of(page) == {
        ("email.send", "new"): "✓ v2",
        ("email.send", "old"): "✗ v1",
        ("a.match", "new"): "✓ v1",
        ("a.match", "old"): "–",
        ("video.cut", "new"): "–",
        ("video.cut", "old"): "✗ v7",
    }
    first = [row.type for row in page.context["matrix"]["rows"]]
    assert first == ["email.send", "video.cut", "a.match"], "what does not match comes first"
    assert "not registered" in page.content.decode()


def test_a_large_fleet_is_shown_by_its_versions(admin_client):
    engine.register_specs({"email.send": "v2"})
    for number in range(45):
        version = "v1" if number < 5 else "v2"
        WorkerFactory(worker_id=f"w-{number:02}", specs={"email.send": version})

    page = admin_client.get(reverse(f"admin:{LIST}_changelist"))

    assert matrix_of(page) == {("email.send", "w-05"): "✓ v2", ("email.send", "w-00"): "✗ v1"}
    assert "and 39 others" in page.content.decode()


def test_specs_need_the_scope_of_operators():
    from jobs.http.authentication import make_key

    _, key = make_key("worker", scopes=["work"])
    client = OJSClient(key)

    assert client.get("/ojs/v1/job-specs").status_code == 200
    assert client.send("job-specs", {"specs": {"a": "1"}}).status_code == 403
