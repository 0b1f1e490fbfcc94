"""Chains and sagas whose steps end together: their next steps begin together, each by itself."""

from __future__ import annotations

import pytest
from django.db.models import JSONField
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion, inheritance, workflow_progress
from jobs.models import Job, Workflow
from jobs.spec.workflow_plans import plan_of
from jobs.store import queries
from tests.database import connection

pytestmark = pytest.mark.django_db
ONLY_ONE = {"unique": {"keys": ["type"], "on_conflict": "reject"}}


def step(kind="step", **members):
    return {"type": kind, "args": [], **members}


def create(*steps, **members):
    document = {"type": "chain", "steps": list(steps), **members}
    return engine.create_workflow(plan_of(document, timezone.now()))


def finish(result=None):
    """Fetch all jobs there are, and complete them at once; return them."""
    jobs = engine.claim(["default"], count=100)
    outcomes = engine.complete(
        [Completion(job.id, result=result(job) if result else None) for job in jobs]
    )
    assert [outcome.error for outcome in outcomes] == [None] * len(jobs)
    return jobs


def waiting():
    """The results that each waiting job inherits, by its workflow."""
    return dict(Job.objects.filter(state="available").values_list("workflow", "parent_results"))


def test_each_of_many_chains_goes_on_with_its_own_results():
    chains = [create(step(), step(), step()) for _ in range(3)]
    inner = {"type": "group", "jobs": [step("left"), step("right")]}
    nested = create(inner, step())

    def result(job):
        return {"of": str(job.workflow_id), "type": job.type}

    finish(result)

    first = {chain.pk: [{"of": str(chain.pk), "type": "step"}] for chain in chains}
    group = Workflow.objects.get(parent=nested)
    both = [{"of": str(group.pk), "type": kind} for kind in ("left", "right")]
    assert waiting() == {**first, nested.pk: [both]}
    finish(result)
    assert waiting() == {pk: results * 2 for pk, results in first.items()}
    finish()
    assert set(Workflow.objects.values_list("state", flat=True)) == {"completed"}


def test_chains_that_have_come_differently_far_go_on_together():
    ahead = create(step("a"), step("b"), step("c"))
    finish()
    behind = create(step("x"), step("y"), step("z"))

    finish()

    left = Job.objects.filter(state="available").values_list("workflow", "type")
    assert dict(left) == {ahead.pk: "c", behind.pk: "y"}


def test_the_next_step_of_a_long_chain_begins_without_reading_the_others(monkeypatch):
    read = []
    usual = JSONField.from_db_value

    def reading(field, value, *arguments):
        read.append(len(value or ""))
        return usual(field, value, *arguments)

    create(*(step(args=["x" * 1_000]) for _ in range(20)))
    monkeypatch.setattr(JSONField, "from_db_value", reading)
    # A query that has been compiled keeps the functions that read its columns.
    monkeypatch.setattr(queries, "_compiled", queries._compiled.__wrapped__)

    finish()

    assert 1_000 < max(read) < 2_000


def test_a_step_that_is_refused_breaks_its_own_chain_only():
    taken = create(step(), step("only-one", options=ONLY_ONE))
    free = [create(step(), step()) for _ in range(2)]
    finish()
    late = create(step(), step("only-one", options=ONLY_ONE))
    more = create(step(), step("other"))

    outcomes = engine.complete(
        [
            Completion(job.id)
            for job in engine.claim(["default"], count=100)
            if job.type != "only-one"
        ]
    )

    assert all(outcome.error is None for outcome in outcomes)
    late.refresh_from_db()
    assert late.state == "failed"
    assert late.problem["failed_step_index"] == 1
    assert late.problem["errors"][0]["code"] == "duplicate"
    assert {each.pk for each in Workflow.objects.filter(state="completed")} == {
        each.pk for each in free
    }
    assert list(Job.objects.filter(state="available").values_list("workflow", "type")) == [
        (more.pk, "other")
    ]
    assert Workflow.objects.get(pk=taken.pk).state == "running"


def test_a_step_that_ends_takes_no_more_queries_with_many_chains_than_with_one():
    def counted(count):
        for _ in range(count):
            create(step(), step(), step())
        finish()
        with CaptureQueriesContext(connection) as captured:
            finish()
        Job.objects.all().delete()
        return len(captured)

    assert counted(workflow_progress.AT_ONCE) <= counted(1) + 2


def test_what_a_chain_inherits_is_limited_by_itself(monkeypatch):
    monkeypatch.setattr(inheritance, "MOST", 100)
    monkeypatch.setattr(inheritance, "LEAST", 50)
    large, small = create(step(), step()), create(step(), step())

    finish(lambda job: "x" * (90 if job.workflow_id == large.pk else 20))
    assert waiting() == {large.pk: ["x" * 90], small.pk: ["x" * 20]}


def test_a_chain_breaks_at_once_when_the_workflow_inside_it_is_cancelled():
    inner = {"type": "group", "jobs": [step("left"), step("right")]}
    outer = create(inner, step("next"))

    engine.cancel_workflow(Workflow.objects.get(parent=outer).pk)

    outer.refresh_from_db()
    assert outer.state == "failed"
    assert set(Job.objects.values_list("type", "state")) == {
        ("left", "cancelled"),
        ("right", "cancelled"),
    }
