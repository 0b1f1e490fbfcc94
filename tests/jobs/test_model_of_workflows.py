"""Workflows against a small model, with jobs ending in any order (OJS workflows §8)."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.models import Job, Workflow
from jobs.spec.workflow_plans import plan_of

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

KINDS = ("chain", "group", "batch")
CALLBACKS = ("on_complete", "on_success", "on_failure")
# Each job's type determines how it ends, so that the model can predict it.
LEAVES = st.sampled_from(["ok", "bad"]).map(lambda end: {"type": end, "args": []})
UNDO = "compensate"


def _around(nodes: Any) -> Any:
    callbacks = st.dictionaries(st.sampled_from(CALLBACKS), LEAVES, min_size=1)
    members = st.lists(nodes, min_size=1, max_size=3)
    steps = st.lists(
        st.builds(_with_compensation, nodes, st.none() | LEAVES), min_size=1, max_size=3
    )
    return st.one_of(
        st.builds(lambda steps: {"type": "chain", "steps": steps}, steps),
        st.builds(lambda jobs: {"type": "group", "jobs": jobs}, members),
        st.builds(
            lambda jobs, calls: {"type": "batch", "jobs": jobs, "callbacks": calls},
            members,
            callbacks,
        ),
    )


def _with_compensation(node: dict[str, Any], undo: dict[str, Any] | None) -> dict[str, Any]:
    return node if undo is None else node | {UNDO: undo}


WORKFLOWS = _around(st.recursive(LEAVES, _around, max_leaves=6))


class Model:
    """The expected outcome of a workflow, in a dozen lines: no rows, no order, no locks."""

    def __init__(self) -> None:
        self.ran = 0
        self.undone = False
        """Whether the last chain that failed undid what it could."""

    def state(self, node: dict[str, Any]) -> str:
        """Return the state in which the outermost workflow ends."""
        if self.ends_well(node):
            return "completed"
        return "compensated" if node["type"] == "chain" and self.undone else "failed"

    def ends_well(self, node: dict[str, Any]) -> bool:
        if node["type"] not in KINDS:
            self.ran += 1
            return node["type"] == "ok"
        if node["type"] == "chain":
            return self.chain_ends_well(node["steps"])
        fine = [self.ends_well(job) for job in node["jobs"]]
        if node["type"] == "group":
            return all(fine)
        called = ("on_complete", "on_success" if all(fine) else "on_failure")
        calls = [node["callbacks"][name] for name in called if name in node["callbacks"]]
        fine = [self.ends_well(call) for call in calls]  # all of them run
        return all(fine)

    def chain_ends_well(self, steps: list[dict[str, Any]]) -> bool:
        done: list[dict[str, Any]] = []
        for step in steps:
            if not self.ends_well(step):
                break
            done.insert(0, step)
        else:
            return True
        # Stops at the first that fails, again.
        undone = all(self.ends_well(step[UNDO]) for step in done if UNDO in step)
        self.undone = undone and any(UNDO in step for step in steps)
        return False


def settle_all(choose: Any) -> None:
    """Play a worker that ends its jobs in the order and portions that `choose` gives."""
    held: list[Any] = []
    while True:
        held += engine.claim(["default"], count=100)
        if not held:
            return
        portion = choose(len(held))
        now, held = held[:portion], held[portion:]
        now.reverse()
        engine.complete([Completion(job.id, result=1) for job in now if job.type == "ok"])
        engine.fail([Failure(job.id, retryable=False) for job in now if job.type == "bad"])


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(WORKFLOWS, st.data())
def test_every_workflow_ends_as_its_model_says(document, data):
    Job.objects.all().delete()
    Workflow.objects.all().delete()
    workflow = engine.create_workflow(plan_of(document, timezone.now()))
    model = Model()
    expected = model.state(document)

    settle_all(lambda most: data.draw(st.integers(1, most)))

    workflow.refresh_from_db()
    assert workflow.state == expected
    assert Job.objects.filter(finished_at__isnull=False).count() == model.ran
    assert Job.objects.count() == model.ran, "nothing is left behind"
    assert not Workflow.objects.filter(finished_at__isnull=True).exists()
    assert engine.repair() == 0
