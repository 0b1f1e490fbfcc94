"""Workflows in the admin: the list, the page with its picture, cancelling."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

from jobs import engine
from jobs.admin.graph import _time_of
from jobs.engine import Completion, Failure
from jobs.models import Job, Workflow
from jobs.spec.workflow_plans import plan_of
from tests.factories import JobFactory, ago
from tests.operators import answer, choose, viewer

pytestmark = pytest.mark.django_db

WORKFLOW = "ojs_jobs_workflow"
CHANGELIST = reverse("admin:ojs_jobs_workflow_changelist")


def job(kind):
    return {"type": kind, "args": []}


def make(**document):
    return engine.create_workflow(plan_of(document, timezone.now()))


def page(client, model, key):
    reply = client.get(reverse(f"admin:ojs_jobs_{model}_change", args=[key]))
    assert reply.status_code == 200
    return reply.content.decode()


def test_the_list_shows_whole_workflows_and_how_far_they_are(admin_client):
    lane = {"type": "chain", "steps": [job("a"), job("b")]}
    make(type="group", name="nightly", jobs=[lane, job("c")])
    held = {claimed.type: claimed.id for claimed in engine.claim(["default"], count=9)}
    engine.complete([Completion(held["c"])])

    text = admin_client.get(CHANGELIST).content.decode()

    assert "nightly" in text and "1 / 2" in text
    assert text.count("action-select") - text.count("action-select-all") <= 4


def test_the_page_has_a_picture_with_every_node_and_its_state(admin_client):
    inner = {"type": "group", "jobs": [job("left"), job("right")]}
    end = {"type": "batch", "jobs": [job("z")], "callbacks": {"on_failure": job("alarm")}}
    chain = make(type="chain", name="<b>etl</b>", steps=[job("first"), inner, end, job("last")])
    (first,) = engine.claim(["default"])
    engine.complete([Completion(first.id)])

    text = page(admin_client, "workflow", chain.pk)

    picture = text[text.index("ojs-graph") :]
    assert "style=" not in picture[: picture.index("</svg>")]
    for title, state in (("first", "completed"), ("left", "pending"), ("last", "waiting")):
        assert f"<title>{title} {state}</title>" in text
    assert reverse("admin:ojs_jobs_job_change", args=[first.id]) in text
    assert "<b>etl</b>" not in text


def test_the_picture_of_a_diamond_has_its_four_edges(admin_client):
    steps = [
        job(name) | {"id": name, "depends_on": list(before)}
        for name, before in {"a": "", "b": "a", "c": "a", "d": "bc"}.items()
    ]
    workflow = make(name="diamond", steps=steps)

    assert page(admin_client, "workflow", workflow.pk).count('class="ojs-edge"') == 4


def test_the_picture_of_a_saga_has_what_undoes_a_step_below_it(admin_client):
    inner = {"type": "group", "jobs": [job("left"), job("right")], "compensate_type": "undo.both"}
    first = job("first") | {"compensate_type": "undo.first"}
    chain = make(type="chain", steps=[first, inner, job("last")])

    def settle(*names):
        held = {claimed.type: claimed.id for claimed in engine.claim(["default"], count=9)}
        assert set(held) == set(names)
        if names == ("last",):
            engine.fail([Failure(held["last"], retryable=False)])
        else:
            engine.complete([Completion(held[name]) for name in names])

    before = page(admin_client, "workflow", chain.pk)
    assert "<title>undo.first undoes it · waiting</title>" in before
    for names in (("first",), ("left", "right"), ("last",), ("undo.both",)):
        settle(*names)
    after = page(admin_client, "workflow", chain.pk)

    assert after.count("ojs-edge-back") == 2
    assert "<title>undo.both undoes it · completed</title>" in after
    assert "<title>undo.first undoes it · pending</title>" in after
    assert "ojs-chip-compensating" in after and 'value="cancel"' not in after
    settle("undo.first")
    assert "ojs-chip-compensated" in page(admin_client, "workflow", chain.pk)
    assert (
        "compensated" in admin_client.get(CHANGELIST + "?state__exact=compensated").content.decode()
    )


def test_a_large_group_is_drawn_in_part_and_the_rest_is_counted(admin_client):
    group = make(type="group", jobs=[job("x")] * 700)

    text = page(admin_client, "workflow", group.pk)

    assert "and 688 more" in text and text.count("<rect") == 13


def test_a_failed_workflow_says_what_went_wrong(admin_client):
    group = make(type="group", jobs=[job("x")])
    (held,) = engine.claim(["default"])
    engine.fail([Failure(held.id, retryable=False, message="No such bucket.")])

    assert "No such bucket." in page(admin_client, "workflow", group.pk)


def test_cancelling_asks_first_and_is_written_into_the_history(admin_client):
    chain = make(type="chain", steps=[job("a"), job("b")])

    asked = choose(admin_client, WORKFLOW, "cancel", chain)
    assert b"This cannot be undone" in asked.content
    assert Workflow.objects.get().state == "running"
    answer(admin_client, asked, reason="Wrong file")

    assert Workflow.objects.get().state == "cancelled"
    assert Job.objects.get().state == "cancelled"
    assert LogEntry.objects.count() == 1


def test_a_viewer_cannot_cancel():
    chain = make(type="chain", steps=[job("a"), job("b")])

    assert choose(viewer(), WORKFLOW, "cancel", chain).status_code == 403
    assert Workflow.objects.get().state == "running"


def test_a_jobs_page_shows_its_workflow_its_progress_and_what_it_was_given(admin_client):
    chain = make(type="chain", steps=[job("a"), job("b")])
    (first,) = engine.claim(["default"])
    engine.complete([Completion(first.id, result="hand me down")])
    (second,) = engine.claim(["default"])
    engine.report_progress(second.id, value=0.42, message="Row 14,000")

    text = page(admin_client, "job", second.id)

    assert str(chain.pk) in text and "hand me down" in text
    assert "42%" in text and "Row 14,000" in text and "<progress" in text


def test_a_box_says_how_long_its_job_took_runs_or_waits():
    def box(**columns):
        return _time_of(JobFactory.build(**columns))

    began = ago(9)
    done = {"started_at": began, "finished_at": began + timedelta(seconds=4)}
    assert box(state="completed", **done) == "took 4.0 s"
    again = box(state="active", started_at=ago(90), attempt=2)
    assert again.startswith("runs for 1 min ") and again.endswith(", attempt 2")
    assert box(state="available", enqueued_at=ago(90)).startswith("waits for 1 min ")
    assert box(state="pending") == ""
