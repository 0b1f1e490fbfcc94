"""Workflows of very many jobs: no transaction is for all of them, and no step reads the others."""

from __future__ import annotations

import pytest
from django.db.models import Case, F, JSONField, When
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import engine
from jobs.access.audit import of_shell
from jobs.engine import (
    Completion,
    Failure,
    bulk,
    bulk_operations,
    dependencies,
    workflow_progress,
)
from jobs.errors import InvalidRequest
from jobs.http.workflow_document import Tree
from jobs.models import BulkOperation, Dependency, Event, Job, PendingRelease, Workflow
from jobs.record import counts
from jobs.spec.workflow_plans import plan_of
from jobs.store import pace
from tests.database import connection
from tests.factories import ago

pytestmark = pytest.mark.django_db


def step(kind="step", **members):
    return {"type": kind, "args": [], **members}


def create(document):
    return engine.create_workflow(plan_of(document, timezone.now()))


def group(size):
    return create({"type": "group", "jobs": [step() for _ in range(size)]})


def fan_out(size):
    """A graph in which all other steps wait for the first one."""
    others = [step(id=f"s{number}", depends_on=["first"]) for number in range(size - 1)]
    return create({"type": "dag", "steps": [step(id="first"), *others]})


def states(workflow):
    found = Job.objects.filter(workflow=workflow).order_by("pk").values_list("state", flat=True)
    return [str(state) for state in found]


def fetch(count=1):
    return engine.claim(["default"], count=count)


def complete(*jobs):
    outcomes = engine.complete([Completion(job.id) for job in jobs])
    assert [outcome.error for outcome in outcomes] == [None] * len(jobs)


@pytest.fixture
def three_at_a_time(monkeypatch):
    """More than five jobs are many; three are a batch, of which a sweep takes one."""
    monkeypatch.setattr(bulk, "MOST", 5)
    monkeypatch.setattr(bulk, "BATCH", 3)
    monkeypatch.setattr(pace, "TURN", -1.0)
    monkeypatch.setattr(dependencies, "MOST", 3)


def test_cancelling_a_large_workflow_ends_it_at_once_and_its_jobs_batch_by_batch(three_at_a_time):
    workflow = group(8)

    engine.cancel_workflow(workflow.pk)

    workflow.refresh_from_db()
    assert workflow.state == "cancelled"
    assert states(workflow) == ["available"] * 8
    operation = BulkOperation.objects.get()
    assert (operation.verb, operation.total, operation.source) == ("cancel", 8, "server")
    assert [bulk_operations.advance() for _ in range(4)] == [3, 3, 2, 0]
    assert states(workflow) == ["cancelled"] * 8
    assert Event.objects.filter(type="job.cancelled").count() == 8
    # The event of the workflow says what happened to its jobs.
    assert not Event.objects.filter(type__startswith="workflow.job_").exists()


def test_cancelling_a_large_workflow_can_be_stopped_and_the_sweep_does_not_go_on_instead(
    three_at_a_time,
):
    workflow = group(8)
    engine.cancel_workflow(workflow.pk)
    bulk_operations.advance()
    operation = BulkOperation.objects.get()
    bulk_operations.stop(operation.pk, actor=of_shell())
    Workflow.objects.update(finished_at=ago(60))

    assert bulk_operations.advance() == 0
    assert engine.repair() == 0
    assert states(workflow).count("available") == 5

    bulk_operations.go_on(operation.pk, actor=of_shell())
    assert [bulk_operations.advance() for _ in range(2)] == [3, 2]
    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("completed", 8)


def test_a_workflow_that_is_not_large_is_cancelled_in_the_request(three_at_a_time):
    workflow = group(5)

    engine.cancel_workflow(workflow.pk)

    assert states(workflow) == ["cancelled"] * 5
    assert not BulkOperation.objects.exists()


def test_no_step_is_freed_between_the_end_of_its_workflow_and_its_own_turn(
    three_at_a_time,
):
    workflow = fan_out(8)
    (first,) = fetch()
    engine.cancel_workflow(workflow.pk)

    complete(first)
    while engine.release_more():
        pass

    assert states(workflow) == ["completed", *["pending"] * 7]
    while bulk_operations.advance():
        pass
    assert states(workflow) == ["completed", *["cancelled"] * 7]


def test_steps_that_wait_for_a_cancelled_one_are_left_to_their_own_turn(three_at_a_time):
    workflow = fan_out(8)
    engine.cancel_workflow(workflow.pk)

    assert bulk_operations.advance() == 3
    while engine.release_more():
        pass

    assert states(workflow) == [*["cancelled"] * 3, *["pending"] * 5]


def test_steps_of_a_running_workflow_follow_those_that_a_bulk_operation_cancels(three_at_a_time):
    workflow = fan_out(3)
    bulk_operations.start("cancel", {"workflow": str(workflow.pk)}, actor=of_shell())

    bulk_operations.advance()

    assert states(workflow) == ["cancelled"] * 3


def test_an_ack_releases_some_of_very_many_dependents_and_the_sweep_the_others(three_at_a_time):
    workflow = fan_out(9)
    (first,) = fetch()

    complete(first)

    assert states(workflow) == ["completed", *["available"] * 3, *["pending"] * 5]
    assert [engine.release_more() for _ in range(3)] == [3, 2, 0]
    assert states(workflow) == ["completed", *["available"] * 8]
    assert not PendingRelease.objects.exists()
    assert Event.objects.filter(type="workflow.step_completed").count() == 1


def test_very_many_dependents_are_cancelled_in_the_same_way(three_at_a_time):
    workflow = fan_out(9)
    (first,) = fetch()

    engine.fail([Failure(first.id, retryable=False)])

    assert states(workflow) == ["discarded", *["cancelled"] * 3, *["pending"] * 5]
    assert [engine.release_more() for _ in range(3)] == [3, 2, 0]
    assert states(workflow) == ["discarded", *["cancelled"] * 8]
    workflow.refresh_from_db()
    assert workflow.state == "failed"


def test_dependents_of_several_jobs_are_released_in_one_turn_as_far_as_time_allows(
    three_at_a_time, monkeypatch
):
    monkeypatch.setattr(pace, "TURN", 60.0)
    both = [fan_out(9), fan_out(6)]
    complete(*fetch(2))

    assert engine.release_more() == 8 + 5 - 3

    assert [states(workflow).count("available") for workflow in both] == [8, 5]


def test_nothing_is_released_by_a_job_that_an_operator_has_retried_meanwhile(three_at_a_time):
    workflow = fan_out(9)
    (first,) = fetch()
    engine.fail([Failure(first.id, retryable=False)])
    engine.retry_one(first.id)

    assert engine.release_more() == 0
    assert states(workflow) == ["available", *["cancelled"] * 3, *["pending"] * 5]

    (again,) = fetch()
    complete(again)
    while engine.release_more():
        pass
    assert states(workflow) == ["completed", *["cancelled"] * 3, *["available"] * 5]


def test_what_is_left_to_a_chore_is_not_repaired_as_well(three_at_a_time):
    workflow = fan_out(9)
    (first,) = fetch()
    complete(first)
    Job.objects.filter(pk=first.id).update(finished_at=ago(60))

    assert engine.repair() == 0
    assert states(workflow).count("pending") == 5


def test_the_sweep_finds_dependents_that_nobody_has_noted(three_at_a_time):
    """Those of an older version, say, whose process was killed."""
    workflow = fan_out(9)
    (first,) = fetch()
    complete(first)
    PendingRelease.objects.all().delete()
    Job.objects.filter(pk=first.id).update(finished_at=ago(60))

    engine.repair()
    while engine.release_more():
        pass

    assert states(workflow) == ["completed", *["available"] * 8]
    assert not Dependency.objects.filter(settled=False).exists()
    assert Event.objects.filter(type="workflow.step_completed").count() == 1


def test_a_step_of_a_large_graph_reads_neither_its_steps_nor_its_finished_jobs(monkeypatch):
    small = Case(When(size__lte=2, then=F("steps")), output_field=JSONField())
    monkeypatch.setattr(workflow_progress, "STEPS_OF_SMALL", small)
    fan_out(5)
    complete(*fetch())
    complete(*fetch())  # its names are known now
    (job,) = fetch()

    with CaptureQueriesContext(connection) as captured:
        complete(job)

    whole = [query["sql"] for query in captured if '"ojs_jobs_workflow"."steps"' in query["sql"]]
    assert [sql for sql in whole if "CASE WHEN" not in sql] == []
    told = Event.objects.filter(type="workflow.step_completed").order_by("pk")
    assert [(each.data["step_id"], each.data["steps_remaining"]) for each in told] == [
        ("first", 4),
        ("s0", 3),
        ("s1", 2),
    ]


def test_a_step_of_a_large_graph_does_not_count_all_that_are_left_until_few_are(monkeypatch):
    monkeypatch.setattr(workflow_progress, "SMALL", 2)
    monkeypatch.setattr(counts, "PATIENCE", 10**9)  # what was counted once is not too old
    fan_out(6)

    with CaptureQueriesContext(connection) as captured:
        for _ in range(6):
            complete(*fetch())

    told = Event.objects.filter(type="workflow.step_completed").order_by("pk")
    assert [each.data["steps_remaining"] for each in told] == [5, 5, 5, 2, 1, 0]
    counted = [query["sql"] for query in captured if "COUNT(*)" in query["sql"]]
    assert len([sql for sql in counted if "LIMIT" not in sql]) == 1


def test_a_large_workflow_is_retried_by_a_bulk_operation(three_at_a_time):
    inner = {"type": "group", "jobs": [step(), step()]}
    workflow = create({"type": "group", "jobs": [inner, step(), step()]})
    group(2)
    failed = [job.id for job in fetch(6)]
    Job.objects.filter(pk__in=failed).update(
        state="discarded", reserved_until=None, reserved_for=None, finished_at=timezone.now()
    )

    bulk_operations.start("retry", {"workflow": str(workflow.pk)}, actor=of_shell())

    assert [bulk_operations.advance() for _ in range(3)] == [3, 1, 0]
    inside = Workflow.objects.filter(root_id=workflow.pk)
    assert set(states_of(inside)) == {"available"}
    assert Job.objects.filter(state="discarded").count() == 2


def states_of(workflows):
    return Job.objects.filter(workflow__in=workflows).values_list("state", flat=True)


@pytest.mark.parametrize(
    ("verb", "workflow", "message"),
    [
        ("retry", "etl", "must be the id of a workflow"),
        ("delete", "0193a000-0000-7000-8000-000000000000", "deleted with it"),
    ],
)
def test_a_filter_by_workflow_is_refused_where_it_means_nothing(verb, workflow, message):
    with pytest.raises(InvalidRequest, match=message):
        bulk_operations.start(verb, {"workflow": workflow}, actor=of_shell())


def test_what_compensates_goes_on_though_its_workflow_is_cancelled(three_at_a_time):
    saga = {
        "type": "saga",
        "steps": [
            step("book", name="book", compensate_type="unbook"),
            step("pay", name="pay"),
        ],
    }
    workflow = create({"type": "group", "jobs": [saga, *[step("other") for _ in range(8)]]})
    booking = next(job for job in fetch(100) if job.type == "book")
    Job.objects.filter(type="other").update(
        state="available", reserved_until=None, reserved_for=None, started_at=None
    )
    complete(booking)
    pay = next(job for job in fetch(100) if job.type == "pay")
    Job.objects.filter(type="other").update(
        state="available", reserved_until=None, reserved_for=None, started_at=None
    )
    engine.fail([Failure(pay.id, retryable=False)])

    engine.cancel_workflow(workflow.pk)
    while bulk_operations.advance():
        pass

    assert Job.objects.get(type="unbook").state == "available"
    assert set(Job.objects.filter(type="other").values_list("state", flat=True)) == {"cancelled"}


def test_the_page_of_a_large_workflow_reads_the_nodes_that_it_draws():
    workflow = group(6)

    tree = Tree(workflow, most=2)

    assert [job.workflow_index for job in tree.jobs] == [0, 1]
