"""Workflows over HTTP, from a producer's and a worker's side (OJS workflows, HTTP §14)."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from jobs import engine
from jobs.engine import Failure
from jobs.models import Event, Job, Workflow
from jobs.spec.lifecycle import State
from tests.database import connection
from tests.factories import ago
from tests.ojs_client import refusal

pytestmark = pytest.mark.django_db


def job(type="step", **options):
    return {"type": type, "args": [], "options": options}


def create(api, **workflow):
    reply = api.send("workflows", workflow)
    assert reply.status_code == 201, reply.content
    document = reply.json()["workflow"]
    assert reply.headers["Location"].endswith(document["id"])
    return document


def look(api, workflow):
    reply = api.see(f"workflows/{workflow['id']}")
    assert reply.status_code == 200, reply.content
    return reply.json()["workflow"]


def run(api, *outcomes, queue="default"):
    """Fetch as many jobs as there are outcomes; settle each: a result, or None for a failure."""
    jobs = api.fetch(queue, count=len(outcomes))
    assert len(jobs) == len(outcomes), f"{len(jobs)} jobs were there"
    for fetched, result in zip(jobs, outcomes, strict=True):
        if result is None:
            api.nack(fetched["id"], retryable=False, message="broken")
        else:
            assert api.ack(fetched["id"], result=result).status_code == 200
    return jobs


def states(document):
    return [node["state"] for node in document.get("steps") or document["jobs"]]


def test_a_chain_hands_all_earlier_results_to_each_step(api):
    chain = create(api, type="chain", name="order", steps=[job("a"), job("b"), job("c")])
    assert (chain["state"], states(chain)) == ("running", ["pending", "waiting", "waiting"])
    assert chain["steps"][1]["job_id"] is None

    (first,) = run(api, {"a": 1})
    (second,) = run(api, {"b": 2})
    assert states(look(api, chain)) == ["completed", "completed", "pending"]
    (third,) = run(api, {"c": 3})

    given = [fetched["parent_results"] for fetched in (first, second, third)]
    assert given == [[], [{"a": 1}], [{"a": 1}, {"b": 2}]]
    assert [fetched["workflow_id"] for fetched in (first, third)] == [chain["id"]] * 2
    after = look(api, chain)
    assert after["state"] == "completed"
    assert after["steps"][2]["result"] == {"c": 3}
    assert after["metadata"]["completed_count"] == after["metadata"]["job_count"] == 3
    assert after["metadata"]["started_at"] <= after["metadata"]["completed_at"]


def test_a_chain_stops_at_the_step_that_failed_and_says_which_and_why(api):
    chain = create(api, type="chain", steps=[job("a"), job("b"), job("c")])
    run(api, 1)
    (failed,) = run(api, None)

    after = look(api, chain)
    assert (after["state"], states(after)) == ("failed", ["completed", "failed", "cancelled"])
    assert after["failed_step_index"] == 1
    assert after["failed_job_ids"] == [failed["id"]]
    assert after["errors"][0] | {"message": "broken", "attempt": 1} == after["errors"][0]
    assert api.fetch() == []


def test_a_failure_that_will_be_retried_is_no_failure_of_the_workflow(api):
    chain = create(api, type="chain", steps=[job("a"), job("b")])
    (fetched,) = api.fetch()
    api.nack(fetched["id"])

    after = look(api, chain)
    assert (after["state"], states(after)) == ("running", ["pending", "waiting"])


def test_a_group_runs_at_once_and_fails_only_when_all_have_settled(api):
    group = create(api, type="group", jobs=[job(), job(), job()])
    run(api, 1, None)
    assert look(api, group)["state"] == "running"
    run(api, 3)

    after = look(api, group)
    assert after["state"] == "failed"
    assert sorted(states(after)) == ["completed", "completed", "failed"]
    assert (after["jobs_total"], after["jobs_completed"], after["jobs_failed"]) == (3, 2, 1)


CALLBACKS = ("on_complete", "on_success", "on_failure")


@pytest.mark.parametrize(
    ("outcomes", "fired"),
    [((1, 2), {"on_complete", "on_success"}), ((1, None), {"on_complete", "on_failure"})],
    ids=["all succeeded", "one failed"],
)
def test_the_callbacks_of_a_batch_follow_the_matrix_with_all_results(api, outcomes, fired):
    callbacks = {name: job(name, queue="calls") for name in CALLBACKS}
    batch = create(api, type="batch", jobs=[job(), job()], callbacks=callbacks)
    assert api.fetch("calls") == []
    run(api, *outcomes)

    calls = api.fetch("calls", count=9)
    assert {call["type"] for call in calls} == fired
    for call in calls:
        first, second = call["parent_results"]
        assert first == 1
        assert second == 2 if outcomes[1] else second["error"]["message"] == "broken"
    assert look(api, batch)["state"] == "running"
    for call in calls:
        api.ack(call["id"])
    after = look(api, batch)
    assert after["state"] == "completed"
    assert {name for name, call in after["callbacks"].items() if call["job_id"]} == fired


def drawn(dialect, jobs=("a", "b"), after=None):
    """A batch with all callbacks, as the Python or the Go SDK sends it: a graph of steps."""
    steps = [job(name) | {"id": name, "depends_on": []} for name in jobs]
    for name in CALLBACKS:
        call = {"type": name, "args": [], "depends_on": list(jobs if after is None else after)}
        if dialect == "python":
            options = {"callback_type": name, "queue": "calls"}
            steps.append(call | {"id": name, "options": options})
        else:
            steps.append(call | {"id": name.replace("_", "-")})
    return {"name": "b", "steps": steps}


OF_GO = {"OJS-Version": "1.0.0-rc.1"}
HEADERS = {"python": {"OJS-Version": "1.0"}, "go": OF_GO}


@pytest.mark.parametrize("dialect", HEADERS)
@pytest.mark.parametrize(
    ("outcomes", "fired"),
    [((1, 2), {"on_complete", "on_success"}), ((1, None), {"on_complete", "on_failure"})],
    ids=["all succeeded", "one failed"],
)
def test_a_graph_with_callbacks_is_a_batch(api, dialect, outcomes, fired):
    reply = api.send("workflows", drawn(dialect), headers=HEADERS[dialect])
    assert reply.status_code == 201, reply.content
    batch = reply.json()["workflow"]
    assert (batch["type"], batch["metadata"]["job_count"]) == ("batch", 2)
    shown = [(step["type"], step["state"], step["depends_on"]) for step in batch["steps"]]
    assert shown == [("a", "available", []), ("b", "available", [])] + [
        (name, "pending", ["a", "b"]) for name in CALLBACKS
    ]
    assert [step["id"] for step in batch["steps"]] == [
        step["id"] for step in drawn(dialect)["steps"]
    ]
    assert [bool(step["job_id"]) for step in batch["steps"]] == [True] * 2 + [False] * 3
    run(api, *outcomes)

    queue = "calls" if dialect == "python" else "default"
    calls = api.fetch(queue, count=9)
    assert {call["type"] for call in calls} == fired
    assert all(len(call["parent_results"]) == 2 for call in calls)
    assert not any("callback_type" in call for call in calls)
    for call in calls:
        api.ack(call["id"])
    after = look(api, batch)
    assert after["state"] == "completed"
    ended = {step["type"]: step["state"] for step in after["steps"]}
    assert {name for name in CALLBACKS if ended[name] == "completed"} == fired
    assert {ended[name] for name in CALLBACKS if name not in fired} == {"cancelled"}
    assert ended["b"] == ("completed" if outcomes[1] else "discarded")


def test_a_cancelled_batch_that_was_sent_as_a_graph_counts_its_jobs(api):
    batch = create(api, **drawn("python"))

    cancelled = api.delete(f"/ojs/v1/workflows/{batch['id']}").json()["workflow"]

    assert (cancelled["state"], cancelled["steps_cancelled"]) == ("cancelled", 2)
    assert states(cancelled) == ["cancelled"] * 5


@pytest.mark.parametrize(
    ("headers", "document"),
    [({"OJS-Version": "1.0"}, drawn("go")), (OF_GO, drawn("go", after=["a"]))],
    ids=["from another client", "after some of the jobs"],
)
def test_step_ids_alone_make_a_batch_only_as_the_go_sdk_sends_it(api, headers, document):
    reply = api.send("workflows", document, headers=headers)

    assert (reply.status_code, reply.json()["type"]) == (201, "dag")


NO_BATCHES = {
    "after some of the jobs": (drawn("python", after=["a"]), "$.steps[2].depends_on"),
    "jobs in an order": (
        {
            "steps": [
                job() | {"id": "a"},
                job() | {"id": "b", "depends_on": ["a"]},
                job(callback_type="on_failure") | {"id": "c", "depends_on": ["a", "b"]},
            ]
        },
        "$.steps[1].depends_on",
    ),
    "no jobs": (drawn("python", jobs=()), "$.steps"),
    "unknown callback": (
        {"steps": [job() | {"id": "a"}, job(callback_type="on_luck") | {"id": "b"}]},
        "$.steps[1].options.callback_type",
    ),
    "callback twice": (
        {
            "steps": [job() | {"id": "a"}]
            + [
                job(callback_type="on_failure") | {"id": name, "depends_on": ["a"]}
                for name in ("b", "c")
            ]
        },
        "$.steps[2].options.callback_type",
    ),
}


@pytest.mark.parametrize("case", NO_BATCHES)
def test_a_graph_with_callbacks_that_is_no_batch_is_refused(api, case):
    document, path = NO_BATCHES[case]

    reply = api.send("workflows", document)

    assert reply.status_code == 400
    assert refusal(reply)["details"]["validation_errors"][0]["path"] == path
    assert not Workflow.objects.exists()


def test_a_batch_fails_when_a_callback_fails(api):
    batch = create(api, type="batch", jobs=[job()], callbacks={"on_complete": job("call")})
    run(api, 1)
    run(api, None)

    after = look(api, batch)
    assert after["state"] == "failed"
    assert after["failed_callbacks"] == ["on_complete"]
    assert after["errors"][0]["message"] == "broken"


def test_a_batch_whose_callback_has_nothing_to_say_is_completed_at_once(api):
    batch = create(api, type="batch", jobs=[job()], callbacks={"on_failure": job("call")})
    run(api, 1)

    assert look(api, batch)["state"] == "completed"


def test_a_group_in_a_chain_gets_the_results_before_it_and_leaves_an_array(api):
    inner = {"type": "group", "jobs": [job("x"), job("y")]}
    chain = create(api, type="chain", steps=[job("a"), inner, job("b")])
    assert chain["metadata"]["job_count"] == 4
    run(api, "raw")
    x, y = run(api, "x done", "y done")
    assert x["parent_results"] == y["parent_results"] == ["raw"]

    (last,) = run(api, "loaded")

    assert last["parent_results"] == ["raw", ["x done", "y done"]]
    after = look(api, chain)
    assert after["state"] == after["steps"][1]["state"] == "completed"
    assert states(after["steps"][1]) == ["completed", "completed"]


def test_a_failed_group_fails_the_chain_around_it(api):
    inner = {"type": "group", "jobs": [job("x"), job("y")]}
    chain = create(api, type="chain", steps=[inner, job("b")])
    run(api, "x done", None)

    after = look(api, chain)
    assert (after["state"], states(after)) == ("failed", ["failed", "cancelled"])
    assert after["errors"][0]["message"] == "broken"


def test_a_chain_goes_on_after_a_batch_whose_failure_was_taken_care_of(api):
    inner = {"type": "batch", "jobs": [job("x")], "callbacks": {"on_failure": job("care")}}
    chain = create(api, type="chain", steps=[inner, job("b")])
    run(api, None)
    run(api, "taken care of")

    run(api, "b done")
    assert look(api, chain)["state"] == "completed"


def test_three_levels_deep(api):
    lane = {"type": "chain", "steps": [job("a"), job("b")]}
    deep = {"type": "group", "jobs": [lane, lane]}
    chain = create(api, type="chain", steps=[deep, job("end")])
    run(api, 1, 2)
    run(api, 3, 4)

    (end,) = run(api, 5)
    assert sorted(map(sorted, end["parent_results"][0])) in ([[1, 3], [2, 4]], [[1, 4], [2, 3]])
    assert look(api, chain)["state"] == "completed"


def graph(**edges):
    return [job(name) | {"id": name, "depends_on": others} for name, others in edges.items()]


def test_a_graph_runs_each_step_when_what_it_depends_on_is_done(api):
    """The diamond of HTTP §14.1, which has no type."""
    diamond = create(
        api,
        name="diamond",
        steps=graph(a=[], b=["a"], c=["a"], d=["b", "c"]),
        options={"queue": "q"},
    )
    assert states(diamond) == ["available", "pending", "pending", "pending"]
    run(api, "A", queue="q")
    run(api, "B", "C", queue="q")
    (last,) = run(api, "D", queue="q")

    assert sorted(last["parent_results"]) == ["B", "C"]
    after = look(api, diamond)
    assert (after["state"], after["type"], after["steps_completed"]) == ("completed", "dag", 4)
    assert [step["id"] for step in after["steps"]] == ["a", "b", "c", "d"]


def test_a_failed_step_of_a_graph_cancels_what_depends_on_it_and_no_more(api):
    workflow = create(api, name="g", steps=graph(a=[], b=["a"], c=["b"], x=[], y=["x"]))
    jobs = {fetched["type"]: fetched["id"] for fetched in api.fetch(count=9)}
    api.nack(jobs["a"], retryable=False)
    assert look(api, workflow)["state"] == "running"
    api.ack(jobs["x"])
    run(api, "y")

    after = look(api, workflow)
    expected = ["discarded", "cancelled", "cancelled", "completed", "completed"]
    assert (after["state"], states(after)) == ("failed", expected)


def let_expire(*types):
    assert Job.objects.filter(type__in=types).update(expires_at=ago(1)) == len(types)
    assert engine.discard_expired() == len(types)


def failure_of(workflow):
    """Return what the event of a workflow's failure says, as far as it is about the cause."""
    told = Event.objects.get(type="workflow.failed", subject=workflow["id"]).data
    error = {name: told["error"].get(name) for name in ("job_id", "code", "attempt")}
    assert told["error"]["message"]
    return told["failed_step_id"], told["failed_step_type"], error


def test_a_chain_whose_step_expires_says_so(api):
    chain = create(api, type="chain", steps=[job("a", expires_at="+PT1H"), job("b")])
    (step, _) = chain["steps"]
    let_expire("a")

    error = {"job_id": step["job_id"], "code": "expired", "attempt": 0}
    assert failure_of(chain) == ("0", "a", error)
    assert look(api, chain)["errors"][0].items() >= error.items()
    assert api.see(f"jobs/{step['job_id']}/result").json()["error"]["code"] == "expired"


def test_a_chain_whose_retry_comes_too_late_says_so_and_not_what_went_wrong_before(api):
    chain = create(api, type="chain", steps=[job("a", expires_at="+PT1H"), job("b")])
    api.nack(api.fetch()[0]["id"], message="broken")
    let_expire("a")

    assert [error["code"] for error in look(api, chain)["errors"]] == ["expired"]


def test_a_chain_whose_step_is_cancelled_says_so(api):
    chain = create(api, type="chain", steps=[job("a"), job("b")])
    (held,) = api.fetch()
    api.nack(held["id"], message="broken")
    api.delete(f"/ojs/v1/jobs/{held['id']}")

    error = {"job_id": held["id"], "code": "job_cancelled", "attempt": 1}
    assert failure_of(chain) == ("0", "a", error)


def test_a_callback_learns_why_there_is_no_result(api):
    create(
        api,
        type="batch",
        jobs=[job("late", expires_at="+PT1H"), job("cancelled")],
        callbacks={"on_complete": job("call")},
    )
    let_expire("late")
    engine.cancel(Job.objects.get(type="cancelled").pk)

    (call,) = api.fetch()
    given = [(entry["state"], entry["error"]["code"]) for entry in call["parent_results"]]
    assert given == [("discarded", "expired"), ("cancelled", "job_cancelled")]


def test_the_event_of_a_batch_whose_callback_fails_is_about_the_callback(api):
    calls = {"on_complete": job("call"), "on_failure": job("care")}
    batch = create(api, type="batch", jobs=[job("a"), job("b")], callbacks=calls)
    run(api, None, "fine")
    _, care = run(api, "called", None)

    error = {"job_id": care["id"], "code": "handler_error", "attempt": 1}
    assert failure_of(batch) == ("on_failure", "care", error)


def test_the_event_of_a_workflow_in_which_another_fails_is_about_that_one(api):
    inner = {"type": "group", "jobs": [job("x"), job("y")]}
    chain = create(api, type="chain", steps=[job("a"), inner, job("b")])
    run(api, "done")
    _, y = run(api, "fine", None)

    error = {"job_id": y["id"], "code": "handler_error", "attempt": 1}
    assert failure_of(chain) == ("1", "group", error)


def test_what_is_cancelled_for_the_failure_of_another_step_has_not_failed(api):
    workflow = create(api, name="g", steps=graph(a=[], b=["a"], c=["b"], x=[]))
    jobs = {fetched["type"]: fetched["id"] for fetched in api.fetch(count=9)}
    api.nack(jobs["a"], retryable=False)
    api.ack(jobs["x"])

    after = look(api, workflow)
    assert after["failed_job_ids"] == [jobs["a"]]
    assert [error["job_id"] for error in after["errors"]] == [jobs["a"]]
    assert failure_of(workflow)[:2] == ("a", "a")


def test_a_step_that_is_refused_has_failed(api):
    only = {"unique": {"keys": ["type"], "on_conflict": "ignore"}}
    api.pushed(type="b", options=only | {"queue": "other"})
    chain = create(api, type="chain", steps=[job("a"), job("b", **only), job("c")])
    run(api, "done")

    after = look(api, chain)
    assert (after["state"], states(after)) == ("failed", ["completed", "failed", "cancelled"])
    assert after["failed_step_index"] == 1
    error = {"job_id": None, "code": "duplicate", "attempt": 0}
    assert failure_of(chain) == ("1", "b", error)


def test_callbacks_that_are_refused_have_failed(api):
    only = {"unique": {"keys": ["type"], "on_conflict": "reject"}}
    api.pushed(type="call", options=only | {"queue": "other"})
    batch = create(
        api, type="batch", jobs=[job("a")], callbacks={"on_complete": job("call", **only)}
    )
    run(api, "done")

    assert look(api, batch)["failed_callbacks"] == ["on_complete"]
    assert failure_of(batch)[:2] == ("on_complete", "call")


REFUSED = {
    "no steps": ({"type": "chain", "steps": []}, "$.steps"),
    "no jobs": ({"type": "group", "jobs": []}, "$.jobs"),
    "jobs not a list": ({"type": "group", "jobs": {}}, "$.jobs"),
    "steps missing": ({"type": "chain"}, "$.steps"),
    "no such type": ({"type": "star", "jobs": [job()]}, "$.type"),
    "type not text": ({"type": 7, "jobs": [job()]}, "$.type"),
    "no callbacks": ({"type": "batch", "jobs": [job()]}, "$.callbacks"),
    "empty callbacks": ({"type": "batch", "jobs": [job()], "callbacks": {}}, "$.callbacks"),
    "odd callback": (
        {"type": "batch", "jobs": [job()], "callbacks": {"on_tuesday": job()}},
        "$.callbacks.on_tuesday",
    ),
    "callback no object": (
        {"type": "batch", "jobs": [job()], "callbacks": {"on_complete": 1}},
        "$.callbacks.on_complete",
    ),
    "bad job": ({"type": "group", "jobs": [job(), {"type": "x"}]}, "$.jobs[1].args"),
    "job no object": ({"type": "group", "jobs": [None]}, "$.jobs[0]"),
    "bad late step": (
        {"type": "chain", "steps": [job(), job(queue="NO")]},
        "$.steps[1].options.queue",
    ),
    "bad step deep inside": (
        {"type": "chain", "steps": [job(), {"type": "group", "jobs": [{"type": "x"}]}]},
        "$.steps[1].jobs[0].args",
    ),
    "pending job": ({"type": "group", "jobs": [job(pending=True)]}, "$.jobs[0]"),
    "circle": ({"name": "g", "steps": graph(a=["b"], b=["a"])}, "$.steps"),
    "depends on itself": ({"name": "g", "steps": graph(a=["a"])}, "$.steps"),
    "unknown dependency": ({"name": "g", "steps": graph(a=["z"])}, "$.steps[0].depends_on"),
    "same id twice": ({"name": "g", "steps": graph(a=[]) * 2}, "$.steps[1].id"),
    "no id": ({"name": "g", "steps": [job()]}, "$.steps[0].id"),
    "depends_on no list": (
        {"name": "g", "steps": [job() | {"id": "a", "depends_on": "b"}]},
        "$.steps[0].depends_on",
    ),
    "name no text": ({"type": "chain", "name": [], "steps": [job()]}, "$.name"),
    "options no object": ({"type": "chain", "options": [], "steps": [job()]}, "$.options"),
    "misspelt member": ({"type": "group", "jobs": [job()], "calbacks": {}}, "$.calbacks"),
    "callbacks of a group": (
        {"type": "group", "jobs": [job()], "callbacks": {"on_complete": job()}},
        "$.callbacks",
    ),
    "jobs of a chain": ({"type": "chain", "steps": [job()], "jobs": [job()]}, "$.jobs"),
    "misspelt dependency": (
        {"name": "g", "steps": [*graph(a=[]), job() | {"id": "b", "depend_on": ["a"]}]},
        "$.steps[1].depend_on",
    ),
    "misspelt member of a job": (
        {"type": "group", "jobs": [job() | {"pririty": 1}]},
        "$.jobs[0].pririty",
    ),
    "misspelt member deep inside": (
        {"type": "chain", "steps": [{"type": "group", "jobs": [job() | {"agrs": []}]}]},
        "$.steps[0].jobs[0].agrs",
    ),
    "misspelt member of a nested workflow": (
        {"type": "chain", "steps": [{"type": "group", "jobs": [job()], "nmae": "x"}]},
        "$.steps[0].nmae",
    ),
    "misspelt member of a callback": (
        {"type": "batch", "jobs": [job()], "callbacks": {"on_failure": job() | {"arg": 1}}},
        "$.callbacks.on_failure.arg",
    ),
    "misspelt member of a compensation": (
        {"type": "chain", "steps": [job() | {"compensate": job() | {"optoins": {}}}]},
        "$.steps[0].compensate.optoins",
    ),
    "option beside the type of a step": (
        {"type": "chain", "options": {"queue": "fine"}, "steps": [job() | {"queue": "NO WAY"}]},
        "$.steps[0].queue",
    ),
    "part of an option": (
        {"type": "group", "jobs": [job(unique={"keys": ["no"]})]},
        "$.jobs[0].options.unique.keys",
    ),
    "option of a callback": (
        {"type": "batch", "jobs": [job()], "callbacks": {"on_failure": job(scheduled_at="x")}},
        "$.callbacks.on_failure.options.scheduled_at",
    ),
    "option for all steps": (
        {"type": "chain", "options": {"queue": "NO WAY"}, "steps": [job()]},
        "$.options.queue",
    ),
    "option for all steps of a nested workflow": (
        {
            "type": "chain",
            "options": {"queue": "fine"},
            "steps": [job(), {"type": "group", "jobs": [job()], "options": {"queue": "NO WAY"}}],
        },
        "$.steps[1].options.queue",
    ),
    "retry policy": (
        {"type": "group", "jobs": [{"type": "group", "jobs": [job(retry={"jitter": 5})]}]},
        "$.jobs[0].jobs[0].options.retry.jitter",
    ),
    "dependency outside of a graph": (
        {"type": "chain", "steps": [job(), job() | {"depends_on": ["a"]}]},
        "$.steps[1].depends_on",
    ),
    "dependency of a callback": (
        {
            "type": "batch",
            "jobs": [job()],
            "callbacks": {"on_failure": job() | {"depends_on": ["a"]}},
        },
        "$.callbacks.on_failure.depends_on",
    ),
    "dependency of a compensation": (
        {"type": "chain", "steps": [job() | {"compensate": job() | {"depends_on": ["a"]}}]},
        "$.steps[0].compensate.depends_on",
    ),
    "steps and jobs": ({"type": "chain", "steps": [job()], "jobs": [job()]}, "$.jobs"),
    "jobs of a saga": ({"type": "saga", "jobs": [job() | {"name": "a"}]}, "$.steps"),
    "no jobs of a chain": ({"type": "chain", "jobs": []}, "$.jobs"),
    "odd job of a chain": (
        {"type": "chain", "jobs": [job(), job() | {"pririty": 1}]},
        "$.jobs[1].pririty",
    ),
}


def test_a_chain_may_have_jobs_instead_of_steps(api):
    """As the conformance document has it (L3-001)."""
    chain = create(api, type="chain", jobs=[job("a"), {"type": "chain", "jobs": [job("b")]}])
    assert states(chain) == ["pending", "waiting"]
    run(api, 1)
    run(api, 2)

    assert look(api, chain)["state"] == "completed"


def test_the_refusal_of_a_misspelt_member_names_those_there_are(api):
    error = refusal(api.send("workflows", {"type": "group", "jobs": [job()], "calbacks": {}}))

    assert "callbacks" in error["message"]


def test_everything_that_a_job_may_have_is_accepted_in_a_step(api):
    step = {
        "type": "step",
        "specversion": "1.0",
        "args": [],
        "meta": {"a": 1},
        "priority": 1,
        "timeout": 5,
        "retry": {"max_attempts": 2},
        "state": "available",
        "x_team": "billing",
        "ext_ml_model": "m",
        "options": {"callback_type": "on_complete", "tags": ["a"]},
    }
    first = job() | {"name": "first"}
    inner = {"type": "group", "name": "inner", "metadata": {}, "jobs": [first]}

    create(api, type="chain", state="pending", metadata={"a": 1}, steps=[step, inner])

    (found,) = api.fetch()
    assert (found["x_team"], found["ext_ml_model"]) == ("billing", "m")


def test_a_step_that_was_stored_with_a_foreign_member_still_runs(api):
    """As earlier versions accepted it."""
    chain = create(api, type="chain", steps=[job("a"), job("b")])
    stored = Workflow.objects.get(pk=chain["id"])
    stored.steps[1]["depend_on"] = ["a"]
    Workflow.objects.filter(pk=stored.pk).update(steps=stored.steps)

    run(api, 1)
    run(api, 2)

    assert look(api, chain)["state"] == "completed"


@pytest.mark.parametrize("workflow", REFUSED)
def test_a_bad_workflow_is_refused_whole_and_the_reply_says_where(api, workflow):
    document, path = REFUSED[workflow]

    reply = api.send("workflows", document)

    error = refusal(reply)
    assert (reply.status_code, error["code"]) == (400, "invalid_workflow")
    assert error["details"]["validation_errors"][0]["path"] == path
    assert not Workflow.objects.exists() and not Job.objects.exists()


def test_nesting_has_an_end_and_it_is_found_before_anything_runs(api):
    workflow = job()
    for _ in range(10):
        workflow = {"type": "chain", "steps": [workflow]}
    assert api.send("workflows", workflow).status_code == 201

    error = refusal(api.send("workflows", {"type": "chain", "steps": [workflow]}))
    assert "10 levels" in error["message"]


def test_too_many_jobs_are_refused(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BATCH": 3}
    lane = {"type": "chain", "steps": [job(), job()]}

    assert refusal(api.send("workflows", {"type": "group", "jobs": [lane, lane]}))


def test_a_workflow_keeps_the_id_a_client_chose_and_refuses_it_twice(api):
    chosen = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
    assert create(api, type="group", id=chosen, jobs=[job()])["id"] == chosen

    reply = api.send("workflows", {"type": "group", "id": chosen, "jobs": [job()]})
    assert (reply.status_code, refusal(reply)["code"]) == (409, "duplicate")


def test_cancelling_stops_what_waits_and_lets_active_jobs_finish(api):
    inner = {"type": "group", "jobs": [job("x"), job("y")]}
    chain = create(api, type="chain", steps=[inner, job("b")])
    (active,) = api.fetch()

    reply = api.delete(f"/ojs/v1/workflows/{chain['id']}")

    assert reply.status_code == 200
    cancelled = reply.json()["workflow"]
    assert cancelled["state"] == "cancelled" and cancelled["metadata"]["cancelled_at"]
    assert cancelled["steps"][0]["state"] == "cancelled"
    assert sorted(states(cancelled["steps"][0])) == ["active", "cancelled"]
    assert api.ack(active["id"]).status_code == 200
    assert api.fetch() == []
    assert look(api, chain)["state"] == "cancelled"


def fail(api, held):
    reply = api.nack(held["id"], message="broken")
    assert (reply.status_code, reply.json()["state"]) == (200, "cancelled")
    assert "next_attempt_at" not in reply.json()


def give_back(api, held):
    (released,) = engine.fail([Failure(UUID(held["id"]), release=True)])
    assert released.state == State.CANCELLED


def fall_silent(api, held):
    Job.objects.filter(pk=held["id"]).update(reserved_until=ago(1))
    assert engine.expire() == 1


def die(api, held):
    assert engine.reclaim(["w1"]) == 1


def run_too_long(api, held):
    Job.objects.filter(pk=held["id"]).update(timeout=timedelta(seconds=1), started_at=ago(60))
    assert engine.time_out() == 1


@pytest.mark.parametrize("lose", [fail, give_back, fall_silent, die, run_too_long])
def test_the_attempt_that_is_under_way_when_a_workflow_is_cancelled_is_the_last(api, lose):
    chain = create(api, type="chain", steps=[job("a", retry={"max_attempts": 5}), job("b")])
    (held,) = api.fetch(worker_id="w1")
    api.delete(f"/ojs/v1/workflows/{chain['id']}")

    lose(api, held)

    assert api.job(held["id"])["state"] == "cancelled"
    assert api.fetch() == []
    assert (look(api, chain)["state"], states(look(api, chain))) == ("cancelled", ["cancelled"] * 2)
    told = Event.objects.filter(subject=held["id"]).order_by("pk").last()
    assert (told.type, told.data["reason"]) == ("job.cancelled", "Its workflow was cancelled.")


def test_a_dead_job_of_a_cancelled_workflow_is_not_retried(api):
    group = create(api, type="group", jobs=[job("dies"), job("runs")])
    fetched = {one["type"]: one["id"] for one in api.fetch("default", count=2)}
    api.nack(fetched["dies"], retryable=False)
    assert api.delete(f"/ojs/v1/workflows/{group['id']}").status_code == 200

    replies = [
        api.send(f"dead-letter/{fetched['dies']}/retry", {}),
        api.send(f"admin/dead-letter/{fetched['dies']}/retry", {}),
        api.send(f"admin/jobs/{fetched['dies']}/retry", {}),
    ]

    assert [reply.status_code for reply in replies] == [409, 409, 409]
    by_id = api.send("jobs/bulk/retry", {"job_ids": [fetched["dies"]]}).json()["items"][0]
    assert by_id["reason"] == "Job belongs to a workflow and cannot be retried without it"
    by_filter = api.send("jobs/bulk/retry", {"filter": {"type": "dies"}}).json()
    assert (by_filter["retried"], by_filter["has_more"]) == (0, False)
    change = {"filter": {"type": "dies"}, "confirm": True}
    report = api.send("admin/jobs/bulk/retry", change).json()
    assert (report["succeeded"], report["failed"], report["has_more"]) == (0, 1, False)
    assert engine.retry([UUID(fetched["dies"])]) == 0
    engine.queues.configure("default", {"dead_letter_queue": "dead"})
    assert engine.forward_dead() == 0
    assert Job.objects.get(type="dies").state == State.DISCARDED
    assert api.fetch("default", "dead") == []


def test_a_compensation_inside_a_cancelled_workflow_is_retried(api):
    saga = {"type": "chain", "steps": [job("a") | {"compensate": job("undo")}, job("b")]}
    group = create(api, type="group", jobs=[saga, job("c", queue="other")])
    run(api, "done")
    run(api, None)
    (held,) = api.fetch()
    api.delete(f"/ojs/v1/workflows/{group['id']}")

    assert api.nack(held["id"]).json()["state"] == "retryable"


def test_a_finished_workflow_cannot_be_cancelled(api):
    group = create(api, type="group", jobs=[job()])
    run(api, 1)

    reply = api.delete(f"/ojs/v1/workflows/{group['id']}")
    assert (reply.status_code, refusal(reply)["code"]) == (409, "conflict")


@pytest.mark.parametrize("name", ["019539a4-b68c-7def-8000-1a2b3c4d5e6f", "wf_nonexistent"])
def test_a_workflow_that_is_not_there_is_not_found(api, name):
    for reply in (
        api.see(f"workflows/{name}"),
        api.see(f"workflows/{name}/progress"),
        api.delete(f"/ojs/v1/workflows/{name}"),
    ):
        assert (reply.status_code, refusal(reply)["code"]) == (404, "not_found")


def test_the_list_shows_whole_workflows_newest_first_and_filters(api):
    lane = {"type": "chain", "steps": [job(), job()]}
    old = create(api, type="group", name="old", jobs=[lane, job()])
    new = create(api, type="chain", name="new", steps=[job()])

    reply = api.see("workflows").json()
    assert [item["id"] for item in reply["workflows"]] == [new["id"], old["id"]]
    page = api.see("workflows", limit=1).json()
    rest = api.see("workflows", limit=1, cursor=page["pagination"]["next_cursor"]).json()
    assert [item["id"] for item in rest["workflows"]] == [old["id"]]
    assert api.see("workflows", type="chain").json()["total"] == 1
    assert api.see("workflows", name="old", state="running").json()["total"] == 1
    refusal(api.see("workflows", state="odd"))


def test_the_story_of_a_workflow_is_in_the_record_of_events(api):
    chain = create(api, type="chain", name="etl", steps=[job("a"), job("b")])
    run(api, 1)
    run(api, None)

    events = api.see("events", subject=chain["id"]).json()["events"]
    recorded = [event["type"].removeprefix("workflow.") for event in events]
    assert recorded == ["created", "started", "step_completed", "step_failed", "failed"]
    by_type = {event["type"]: event["data"] for event in events}
    assert by_type["workflow.step_completed"]["steps_remaining"] == 1
    assert by_type["workflow.failed"]["failed_step_type"] == "b"
    assert by_type["workflow.failed"]["error"]["message"] == "broken"
    assert all(data["workflow_name"] == "etl" for data in by_type.values())


def test_the_progress_of_a_chain_counts_the_step_that_runs(api):
    chain = create(api, type="chain", steps=[job("a"), job("b"), job("c")])
    run(api, 1)
    (fetched,) = api.fetch()
    api.send(f"jobs/{fetched['id']}/progress", {"progress": 0.73, "data": {"rows": 9}})

    progress = api.see(f"workflows/{chain['id']}/progress").json()
    assert progress["progress"] == pytest.approx(0.5767, abs=1e-3)
    assert [step["progress"] for step in progress["steps"]] == [1.0, 0.73, None]
    assert progress["steps"][1]["data"] == {"rows": 9}


@pytest.mark.slow
def test_a_large_group_is_made_and_finished_in_sets(api, django_assert_max_num_queries):
    # SQLite stores twenty jobs per statement, PostgreSQL a thousand.
    on_postgres = connection.vendor == "postgresql"
    with django_assert_max_num_queries(30 if on_postgres else 140):
        group = create(api, type="group", jobs=[job()] * 2_000)
    ids = []
    while batch := engine.claim(["default"], count=1000):
        ids += [claimed.id for claimed in batch]

    with django_assert_max_num_queries(30 if on_postgres else 6_200):
        engine.complete([engine.Completion(job_id) for job_id in ids])

    assert Workflow.objects.get(pk=group["id"]).state == "completed"


def purge(api, path):
    return api.delete(f"/ojs/v1/{path}", data=b'{"confirm": true}', content_type="application/json")


@pytest.mark.parametrize("path", ["dead-letter", "admin/dead-letter"])
def test_a_failure_is_not_forgotten_when_its_job_is_deleted_from_the_dead_letter(api, path):
    calls = {name: job(name, queue="calls") for name in ("on_success", "on_failure")}
    batch = create(api, type="batch", jobs=[job("a"), job("b")], callbacks=calls)
    other = api.pushed(options={"queue": "other"})
    api.nack(api.fetch("other")[0]["id"], retryable=False)
    (failed,) = run(api, None)

    one = api.delete(f"/ojs/v1/{path}/{failed['id']}")
    assert refusal(one)["code"] == "conflict"
    assert batch["id"] in refusal(one)["message"]
    assert purge(api, path).json() == {"purged_count": 1, "has_more": False}
    assert list(Job.objects.dead().values_list("pk", flat=True)) == [UUID(failed["id"])]
    assert api.see(f"jobs/{other}").status_code == 404

    run(api, "fine")
    (called,) = api.fetch("calls", count=9)
    assert called["type"] == "on_failure"
    assert called["parent_results"][0]["state"] == "discarded"
    api.ack(called["id"])

    assert look(api, batch)["state"] == "completed"
    assert purge(api, path).json() == {"purged_count": 1, "has_more": False}


def test_a_dead_job_inside_is_kept_until_the_outermost_workflow_has_ended(api):
    group = create(
        api, type="group", jobs=[{"type": "chain", "steps": [job("a"), job("b")]}, job("c")]
    )
    failed, _ = api.fetch(count=2)
    api.nack(failed["id"], retryable=False)

    (chain, _) = look(api, group)["jobs"]
    assert chain["state"] == "failed"
    path = f"/ojs/v1/dead-letter/{failed['id']}"
    assert api.delete(path).status_code == 409
    assert engine.bulk.delete(Job.objects.all()) == []

    engine.cancel_workflow(UUID(group["id"]))
    assert api.delete(path).status_code == 200


def test_a_finished_workflow_goes_with_all_its_jobs_when_its_keep_has_passed(api, settings):
    lane = {"type": "chain", "steps": [job(), job()]}
    group = create(api, type="group", jobs=[lane, job()])
    settings.OJS = {**settings.OJS, "COMPLETED_RETENTION": 0}
    run(api, 1, 2)
    assert engine.prune_jobs() == 0, "the workflow still needs them"
    run(api, 3)

    assert engine.prune_workflows() == 1

    assert not Job.objects.exists() and not Workflow.objects.exists()
    assert api.see(f"workflows/{group['id']}").status_code == 404


def test_the_sweep_sets_a_stuck_workflow_going_again(api):
    chain = create(api, type="chain", steps=[job(), job()])
    Workflow.objects.update(created_at="2026-01-01T00:00Z")
    # A host's own SQL ended the first job.
    Job.objects.update(state="completed", finished_at="2026-01-01T00:00Z")

    assert engine.repair() == 1

    assert states(look(api, chain)) == ["completed", "pending"]
    assert engine.repair() == 0
