"""Chains, groups, batches and graphs made in Python, in the database and in modes of testing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

import jobs
from jobs import engine, testing
from jobs.engine import Completion
from jobs.errors import (
    Conflict,
    InvalidRequest,
    InvalidWorkflow,
    Unsupported,
    WaitTimeout,
    WorkflowNotFound,
)
from jobs.middleware import enqueue_chain
from jobs.models import Job, Workflow
from jobs.spec.identifiers import uuid7
from tests.database import atomic
from workers.runtime import handler, handlers

pytest_plugins = ["jobs.pytest_plugin"]


@pytest.fixture
def ran() -> Iterator[list[Any]]:
    """Handlers for the tests, which record their calls."""
    calls: list[Any] = []

    @handler("flow.say")
    def say(context: Any, word: str) -> str:
        calls.append((word, context.parent_results))
        return word

    @handler("flow.fail", retry=jobs.Retry(max_attempts=1))
    def fail(context: Any) -> None:
        raise ZeroDivisionError

    yield calls
    for name in ("flow.say", "flow.fail"):
        handlers.forget(name)


def say(word: str, **options: Any) -> jobs.Step:
    return jobs.job("flow.say", [word], **options)


@pytest.fixture(params=["database", "fake"])
def place(request: Any) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "fake":
            stack.enter_context(testing.fake())
        else:
            request.getfixturevalue("db")
        yield request.param


PLANS: dict[str, tuple[Any, str, list[Any], list[Any]]] = {
    "chain": (
        lambda: jobs.chain(say("a"), say("b"), say("c")),
        "chain",
        ["a", "b", "c"],
        [("a", []), ("b", ["a"]), ("c", ["a", "b"])],
    ),
    "group": (lambda: jobs.group(say("a"), say("b")), "group", ["a", "b"], [("a", []), ("b", [])]),
    "batch": (
        lambda: jobs.batch(say("a"), on_complete=say("done"), on_failure=say("no")),
        "batch",
        ["a"],
        [("a", []), ("done", ["a"])],
    ),
    "nested": (
        lambda: jobs.chain(say("a"), jobs.group(say("b"), say("c")), say("d")),
        "chain",
        ["a", ["b", "c"], "d"],
        [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["a", ["b", "c"]])],
    ),
}


def graph() -> jobs.Composition:
    extract = say("extract")
    clean = say("clean", depends_on=[extract])
    return jobs.graph(extract, clean, say("load", depends_on=[clean, extract]), name="etl")


@pytest.mark.parametrize("kind", PLANS)
def test_a_workflow_made_in_python_runs_like_any_other(place, ran, kind):
    plan, type, results, calls = PLANS[kind]
    flow = plan().enqueue()

    assert (flow.type, flow.state, flow.is_finished) == (type, "running", False)
    testing.run_jobs()

    assert flow.refresh().state == "completed" and flow.is_finished
    assert flow.results() == results
    assert ran == calls
    assert len(flow.jobs()) == len(calls)
    assert jobs.get_workflow(str(flow.id)) == flow


def test_a_graph_runs_each_step_after_those_it_depends_on(place, ran):
    flow = graph().enqueue()

    testing.run_jobs()

    assert flow.refresh().state == "completed"
    assert ran == [("extract", []), ("clean", ["extract"]), ("load", ["clean", "extract"])]
    testing.assert_workflow_created("dag", name="etl", step_count=3)


def test_the_steps_of_a_graph_may_have_names(place, ran):
    first, second = say("a", step="one"), say("b", depends_on=["one"])

    jobs.graph(second, first, say("c").after(first, second)).enqueue()
    testing.run_jobs()

    assert [word for word, _ in ran] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", PLANS)
def test_a_workflow_has_ended_when_inline_returns(inline_jobs, ran, kind):
    plan, type, results, calls = PLANS[kind]

    flow = plan().enqueue()

    assert flow.state == "completed" and flow.results() == results
    assert ran == calls
    testing.assert_workflow_created(type, count=1)


def test_inline_raises_the_first_error_when_the_workflow_has_run(inline_jobs, ran):
    with pytest.raises(ZeroDivisionError):
        jobs.batch(jobs.job("flow.fail", max_attempts=1), on_failure=say("sorry")).enqueue()

    assert [word for word, _ in ran] == ["sorry"]


def test_a_failed_workflow_says_why(place, ran):
    flow = jobs.chain(jobs.job("flow.fail", max_attempts=1), say("never")).enqueue()

    testing.run_jobs()

    assert flow.refresh().state == "failed"
    (error,) = flow.errors
    assert error["code"] == "handler_error"


def broken() -> jobs.Step:
    return jobs.job("flow.fail", max_attempts=1)


SAGAS: dict[str, tuple[Any, list[str]]] = {
    "argument": (
        lambda: jobs.chain(say("a", compensate=say("no a")), say("b"), broken()),
        ["a", "b", "no a"],
    ),
    "method": (
        lambda: jobs.chain(say("a").undone_by(say("no a")), broken().undone_by(say("no"))),
        ["a", "no a"],
    ),
    "nested": (
        lambda: jobs.chain(
            jobs.group(say("a"), say("b"), compensate=say("no group")),
            jobs.chain(say("c", compensate=say("no c")), say("d"), compensate=say("no chain")),
            broken(),
        ),
        ["a", "b", "c", "d", "no chain", "no group"],
    ),
}


@pytest.mark.parametrize("kind", SAGAS)
def test_a_chain_made_in_python_undoes_its_completed_steps(place, ran, kind):
    plan, words = SAGAS[kind]

    flow = plan().enqueue()
    testing.run_jobs()

    assert flow.refresh().state == "compensated" and flow.is_finished
    assert [word for word, _ in ran] == words
    assert len(flow.errors) == 1
    assert [job.type for job in flow.jobs()].count("flow.say") == len(words)


@pytest.mark.parametrize("undo", ["flow.say", jobs.group(say("no"))], ids=["type", "group"])
def test_only_a_job_can_undo_a_step(undo):
    with pytest.raises(TypeError, match="compensation"):
        say("a", compensate=undo)
    with pytest.raises(TypeError, match="compensation"):
        jobs.group(say("a"), compensate=undo)


def test_only_a_step_of_a_chain_can_be_undone(place):
    for flow in (
        jobs.group(say("a", compensate=say("no a"))),
        jobs.graph(say("a", compensate=say("no a"))),
        jobs.chain(say("a"), compensate=say("no a")),
    ):
        with pytest.raises(Unsupported, match="only in a step of a chain"):
            flow.enqueue()


def test_inline_has_undone_the_steps_when_it_raises(inline_jobs, ran):
    with pytest.raises(ZeroDivisionError):
        jobs.chain(say("a", compensate=say("no a")), broken()).enqueue()

    assert [word for word, _ in ran] == ["a", "no a"]


@pytest.mark.django_db(transaction=True)
def test_a_workflow_is_rolled_back_with_the_transaction_it_belongs_to():
    with pytest.raises(ZeroDivisionError), atomic():
        jobs.group(say("a"), say("b")).enqueue()
        raise ZeroDivisionError

    assert not Workflow.objects.exists() and not Job.objects.exists()


def test_a_workflow_is_cancelled_once(place, ran):
    flow = jobs.chain(say("a"), say("b")).enqueue()

    assert flow.cancel().state == "cancelled"
    assert [job.state for job in flow.jobs()] == ["cancelled"]
    with pytest.raises(Conflict):
        flow.cancel()


def test_async_code_composes_too(place, ran):
    async def story() -> tuple[Any, ...]:
        flow = await jobs.group(say("a"), say("b")).aenqueue()
        same = await jobs.aget_workflow(flow.id)
        return same == flow, len(await flow.ajobs()), (await flow.acancel()).state

    assert async_to_sync(story)() == (True, 2, "cancelled")


def test_a_workflow_that_is_not_there_is_refused():
    with testing.fake():
        for unknown in (uuid7(), "nothing"):
            with pytest.raises(WorkflowNotFound):
                jobs.get_workflow(unknown)


@pytest.mark.django_db(transaction=True)
def test_the_end_of_the_whole_is_waited_for():
    from tests.jobs.test_handles import in_a_thread, until
    from tests.processes import PATIENCE

    flow = jobs.chain(say("a"), say("b")).enqueue()
    with pytest.raises(WaitTimeout):
        flow.wait(timeout=0.01)
    thread, found = in_a_thread(lambda: jobs.get_workflow(flow.id).wait(timeout=PATIENCE))

    for _ in range(2):
        (job,) = engine.claim(["default"], worker_id="w")
        engine.complete([Completion(job.id, "w")])

    thread.join(PATIENCE)
    until(lambda: found)
    assert [handle.state for handle in found] == ["completed"]


@pytest.mark.django_db(transaction=True)
def test_a_wait_in_the_transaction_that_made_the_workflow_is_refused():
    with atomic():
        flow = jobs.group(say("a")).enqueue()
        with pytest.raises(jobs.WaitsForever):
            flow.wait()


# What is refused


@pytest.mark.parametrize(
    ("plan", "place_of_error"),
    [
        (lambda: jobs.chain(), "steps"),
        (lambda: jobs.batch(say("a")), "callbacks"),
        (lambda: jobs.chain(say("a"), jobs.job("no type!")), "steps[1].type"),
        (lambda: jobs.chain(say("a"), jobs.group(say("b", priority=500))), "steps[1].jobs[0]"),
        (lambda: jobs.graph(say("a", depends_on=["b"])), "steps[0].depends_on"),
        (lambda: jobs.graph(say("a", depends_on=[say("b")])), "same graph"),
        (
            lambda: jobs.graph(
                say("a", step="a", depends_on=["b"]), say("b", step="b", depends_on=["a"])
            ),
            "circle",
        ),
    ],
)
def test_a_workflow_that_breaks_a_rule_is_refused_whole(fake_jobs, plan, place_of_error):
    with pytest.raises(InvalidWorkflow) as refusal:
        plan().enqueue()

    assert place_of_error in str(refusal.value)
    assert fake_jobs.jobs == []


@handler("flow.lonely")
def lonely(context: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("compose", "problem"),
    [
        (lambda: jobs.batch(say("a"), on_complete=lonely), r"on_complete must be .*handler\.job"),
        (lambda: jobs.batch(say("a"), on_failure="flow.say"), "on_failure must be"),
        (lambda: say("a").after([say("b"), say("c")]), "waits for steps or their names, not"),
        (lambda: say("a", depends_on="first"), "depends_on must be a list"),
        (lambda: say("a", depends_on=[lonely]), "waits for steps or their names, not"),
    ],
)
def test_what_is_no_step_is_refused_where_it_is_named(compose, problem):
    with pytest.raises(TypeError, match=problem):
        compose()


def test_only_jobs_and_workflows_are_members():
    with pytest.raises(TypeError, match=r"jobs\.job"):
        jobs.chain("flow.say")  # type: ignore[arg-type]


def test_an_option_that_does_not_exist_is_refused(fake_jobs):
    with pytest.raises(InvalidRequest, match="quue"):
        jobs.chain(jobs.job("flow.say", ["a"], quue="mail")).enqueue()  # type: ignore[call-arg]


def test_options_reach_the_job_a_delay_counts_from_its_turn(fake_jobs):
    jobs.chain(
        say("a", queue="slow", priority=7, retry=jobs.Retry(max_attempts=9), tags=["x"]),
        say("b", scheduled_at=timedelta(hours=1)),
    ).enqueue()

    (job,) = fake_jobs.jobs
    assert (job.queue, job.priority, job.max_attempts, job.tags) == ("slow", 7, 9, ["x"])


def test_a_delayed_step_waits_when_its_turn_has_come(fake_jobs, ran):
    flow = jobs.chain(say("a"), say("b", scheduled_at=timedelta(hours=1))).enqueue()

    testing.run_jobs()
    assert [job.state for job in flow.jobs()] == ["completed", "scheduled"]
    testing.advance_time(hours=1)
    testing.run_jobs()

    assert flow.refresh().state == "completed"


# Middleware


@pytest.fixture
def middleware() -> Iterator[Any]:
    enqueue_chain.reset()
    yield enqueue_chain
    enqueue_chain.reset()


def test_enqueue_middleware_sees_each_job_of_a_workflow(fake_jobs, ran, middleware):
    middleware.add(lambda job, next: next(job | {"meta": {"seen": job["type"]}}))

    jobs.chain(say("a"), say("b")).enqueue()
    testing.run_jobs()

    assert [job.meta for job in fake_jobs.jobs] == [{"seen": "flow.say"}] * 2


def test_enqueue_middleware_sees_compensations(fake_jobs, ran, middleware):
    middleware.add(lambda job, next: next(job | {"meta": {"seen": job["args"]}}))

    jobs.chain(say("a", compensate=say("no a")), broken()).enqueue()
    testing.run_jobs()

    assert {"seen": ["no a"]} in [job.meta for job in fake_jobs.jobs]


def test_a_job_of_a_workflow_cannot_be_dropped(fake_jobs, middleware):
    middleware.add(lambda job, next: None)

    with pytest.raises(InvalidWorkflow, match="dropped"):
        jobs.chain(say("a")).enqueue()
