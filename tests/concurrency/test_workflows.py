"""Predecessors that end at the same instant: their dependents start exactly once."""

from __future__ import annotations

import contextlib

import pytest
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.errors import Conflict
from jobs.models import Event, Job, Workflow
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from jobs.spec.workflow_plans import plan_of

from .threads import in_step, together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.postgres,
]

ROUNDS = 60


def new(name):
    return new_job({"type": name, "args": []}, timezone.now())


def test_of_two_predecessors_that_end_together_one_frees_the_waiter():
    left, right, waiters = ([new(name) for _ in range(ROUNDS)] for name in "lrw")
    engine.enqueue_after(
        [*left, *right, *waiters],
        {w.id: [a.id, b.id] for a, b, w in zip(left, right, waiters, strict=True)},
    )
    engine.claim(["default"], count=2 * ROUNDS)

    in_step(
        ROUNDS,
        lambda n: engine.complete([Completion(left[n].id, result="left")]),
        lambda n: engine.complete([Completion(right[n].id, result="right")]),
    )

    freed = Job.objects.filter(pk__in=[job.id for job in waiters])
    assert set(freed.values_list("state", flat=True)) == {State.AVAILABLE}
    assert all(job.parent_results == ["left", "right"] for job in freed)
    recorded = Event.objects.filter(type="job.enqueued", subject__in=[str(w.id) for w in waiters])
    assert recorded.count() == ROUNDS


def batch(index):
    job = {"type": "member", "args": []}
    callbacks = {name: {"type": name, "args": []} for name in ("on_complete", "on_failure")}
    plan = {"type": "batch", "name": f"{index}", "jobs": [job] * 3, "callbacks": callbacks}
    return engine.create_workflow(plan_of(plan, timezone.now()))


def test_the_callbacks_of_a_batch_fire_once_when_its_members_end_together():
    batches = [batch(index) for index in range(ROUNDS)]
    engine.claim(["default"], count=3 * ROUNDS)
    members = [
        list(Job.objects.filter(workflow=item).order_by("workflow_index")) for item in batches
    ]

    in_step(
        ROUNDS,
        lambda n: engine.complete([Completion(members[n][0].pk)]),
        lambda n: engine.fail([Failure(members[n][1].pk, retryable=False)]),
        lambda n: engine.cancel(members[n][2].pk),
    )

    for kind in ("on_complete", "on_failure"):
        assert Job.objects.filter(type=kind, state=State.AVAILABLE).count() == ROUNDS
    assert Event.objects.filter(type="workflow.callback_fired").count() == 2 * ROUNDS


def test_a_group_settled_by_many_hands_is_completed_once():
    job = {"type": "member", "args": []}
    plan = {"type": "chain", "steps": [{"type": "group", "jobs": [job] * 200}, job]}
    chain = engine.create_workflow(plan_of(plan, timezone.now()))
    ids = [job.id for job in engine.claim(["default"], count=200)]

    together(
        *(
            lambda part=ids[start::4]: [engine.complete([Completion(pk, result=1)]) for pk in part]
            for start in range(4)
        )
    )

    (group,) = Workflow.objects.filter(parent=chain)
    assert group.state == "completed"
    (last,) = Job.objects.filter(workflow=chain)
    assert (last.state, last.parent_results) == (State.AVAILABLE, [[1] * 200])
    assert Event.objects.filter(type="workflow.completed", subject=str(group.pk)).count() == 1


def test_a_saga_that_fails_while_it_is_cancelled_undoes_all_or_nothing():
    steps = [{"type": "a", "args": [], "compensate_type": "undo"}, {"type": "b", "args": []}]
    sagas = [
        engine.create_workflow(plan_of({"type": "chain", "steps": steps}, timezone.now()))
        for _ in range(ROUNDS)
    ]
    engine.complete([Completion(job.id) for job in engine.claim(["default"], count=ROUNDS)])
    engine.claim(["default"], count=ROUNDS)
    second = dict(Job.objects.filter(type="b").values_list("workflow", "pk"))

    def cancel(number):
        with contextlib.suppress(Conflict):
            engine.cancel_workflow(sagas[number].pk)

    in_step(
        ROUNDS,
        lambda n: engine.fail([Failure(second[sagas[n].pk], retryable=False)]),
        cancel,
    )

    undone = set(Job.objects.filter(type="undo").values_list("workflow", flat=True))
    assert Job.objects.filter(type="undo").count() == len(undone)
    states = dict(Workflow.objects.values_list("pk", "state"))
    assert {pk for pk, state in states.items() if state == "compensating"} == undone
    assert set(states.values()) <= {"compensating", "cancelled"}


def test_cancelling_and_finishing_at_once_leave_no_job_that_would_run():
    job = {"type": "step", "args": []}
    chains = [
        engine.create_workflow(plan_of({"type": "chain", "steps": [job, job]}, timezone.now()))
        for _ in range(ROUNDS)
    ]
    engine.claim(["default"], count=ROUNDS)
    first = {job.workflow_id: job.pk for job in Job.objects.all()}

    in_step(
        ROUNDS,
        lambda n: engine.complete([Completion(first[chains[n].pk])]),
        lambda n: engine.cancel_workflow(chains[n].pk),
    )

    assert set(Workflow.objects.values_list("state", flat=True)) == {"cancelled"}
    assert not Job.objects.filter(state=State.AVAILABLE).exists()
