"""Sagas over HTTP: when a step fails for good, what completed before it is undone (OJS workflows
§14)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.models import Job, Workflow
from tests.database import atomic, connection
from tests.ojs_client import refusal

pytestmark = pytest.mark.django_db

ORDER = {
    "type": "saga",
    "name": "order-fulfillment",
    "failure_policy": "compensate",
    "steps": [
        {
            "name": "reserve-inventory",
            "job_type": "inventory.reserve",
            "args": ["SKU-001", 2],
            "compensate_type": "inventory.release",
            "compensate_args": ["SKU-001", 2],
        },
        {
            "name": "charge-payment",
            "job_type": "payment.charge",
            "args": ["card_tok_abc", 49.99],
            "compensate_type": "payment.refund",
            "compensate_args": ["card_tok_abc", 49.99],
        },
        {"name": "ship-order", "job_type": "shipping.create", "args": ["order-123", "express"]},
    ],
}
"""The example of §14.5."""


def step(type, undo=None, **more):
    return {"type": type, "args": []} | ({"compensate_type": undo} if undo else {}) | more


def create(api, **workflow):
    reply = api.send("workflows", workflow)
    assert reply.status_code == 201, reply.content
    return reply.json()["workflow"]


def look(api, workflow):
    return api.see(f"workflows/{workflow['id']}").json()["workflow"]


def run(api, **outcomes):
    """Fetch and settle one job after another until there are none; return them.

    Each is completed with the result given for its type, dots being underscores; without one it
    fails.
    """
    ran = []
    while fetched := api.fetch():
        (job,) = fetched
        ran.append(job)
        name = job["type"].replace(".", "_")
        if name in outcomes:
            api.ack(job["id"], result=outcomes[name])
        else:
            api.nack(job["id"], retryable=False, message=f"{name} broke")
    return ran


def types(ran):
    return [job["type"] for job in ran]


def undone(document):
    return [node.get("compensation", {}).get("state") for node in document["steps"]]


def test_the_example_of_the_document_refunds_and_then_releases(api):
    saga = create(api, **ORDER)
    assert (saga["type"], saga["state"]) == ("saga", "running")
    assert [node["name"] for node in saga["steps"]] == [node["name"] for node in ORDER["steps"]]
    assert undone(saga) == ["waiting", "waiting", None]

    done = {"inventory_reserve": "r1", "payment_charge": {"charge": "ch_1"}}
    ran = run(api, **done, payment_refund=True, inventory_release=True)

    assert types(ran) == [
        "inventory.reserve",
        "payment.charge",
        "shipping.create",
        "payment.refund",
        "inventory.release",
    ]
    refund, release = ran[3:]
    assert refund["args"] == ["card_tok_abc", 49.99] and release["args"] == ["SKU-001", 2]
    *results, failed = refund["parent_results"]
    assert results == ["r1", {"charge": "ch_1"}]
    assert failed["error"]["message"] == "shipping_create broke"
    assert refund["workflow_id"] == saga["id"]
    after = look(api, saga)
    assert after["state"] == "compensated"
    assert [node["state"] for node in after["steps"]] == ["completed", "completed", "failed"]
    assert undone(after) == ["completed", "completed", None]
    assert after["steps"][1]["compensation"]["job_id"] == refund["id"]
    assert (after["failed_step_index"], after["failed_job_ids"]) == (2, [ran[2]["id"]])
    assert after["errors"][0]["message"] == "shipping_create broke"
    assert after["metadata"]["completed_at"]
    assert (after["metadata"]["completed_count"], after["metadata"]["failed_count"]) == (2, 1)
    assert api.see("workflows", state="compensated", type="saga").json()["total"] == 1


def test_nothing_is_undone_when_all_steps_complete(api):
    saga = create(api, **ORDER)

    ran = run(api, inventory_reserve=1, payment_charge=2, shipping_create=3)

    assert len(ran) == 3
    after = look(api, saga)
    assert after["state"] == "completed"
    assert undone(after) == ["not_fired", "not_fired", None]


def test_one_compensation_runs_at_a_time_and_the_rest_wait_for_it(api):
    saga = create(api, **ORDER)
    for _ in range(2):
        api.ack(api.fetch()[0]["id"])
    api.nack(api.fetch()[0]["id"], retryable=False)

    (refund,) = api.fetch(count=5)

    during = look(api, saga)
    assert (during["state"], undone(during)) == ("compensating", ["waiting", "active", None])
    assert "completed_at" not in during["metadata"]
    assert refund["type"] == "payment.refund"


def test_a_compensation_that_fails_ends_the_saga_and_says_what_is_left_to_undo(api):
    saga = create(api, **ORDER)

    ran = run(api, inventory_reserve=1, payment_charge=2, inventory_release=True)

    assert types(ran)[2:] == ["shipping.create", "payment.refund"]
    after = look(api, saga)
    assert (after["state"], undone(after)) == ("failed", ["not_fired", "failed", None])
    assert (after["failed_step_index"], after["failed_compensation_index"]) == (2, 1)
    assert after["uncompensated_steps"] == [1, 0]
    assert after["failed_job_ids"] == [ran[2]["id"], ran[3]["id"]]
    messages = [error["message"] for error in after["errors"]]
    assert messages == ["shipping_create broke", "payment_refund broke"]


def test_the_rest_is_undone_when_an_operator_has_retried_what_failed(api):
    saga = create(api, **ORDER)
    ran = run(api, inventory_reserve=1, payment_charge=2)
    refund = ran[3]

    for outcome, left in ((None, [1, 0]), ({"refunded": True}, [0])):
        assert api.send(f"dead-letter/{refund['id']}/retry", {}).status_code < 300
        (again,) = api.fetch()
        assert again["id"] == refund["id"]
        if outcome is None:
            api.nack(again["id"], retryable=False, message="still broke")
        else:
            api.ack(again["id"], result=outcome)
        found = look(api, saga)
        assert (found["state"], found["uncompensated_steps"]) == ("failed", left)
        assert len(found["failed_job_ids"]) == 2

    assert types(run(api, inventory_release=1)) == ["inventory.release"]
    after = look(api, saga)
    assert (after["state"], undone(after)) == ("failed", ["completed", "completed", None])
    assert after["uncompensated_steps"] == []


def test_a_step_that_an_operator_retries_changes_nothing_in_its_saga(api):
    saga = create(api, **ORDER)
    ran = run(api, inventory_reserve=1, payment_charge=2, inventory_release=3)
    before = look(api, saga)
    api.send(f"dead-letter/{ran[2]['id']}/retry", {})

    assert types(run(api, shipping_create=4)) == ["shipping.create"]

    after = look(api, saga)
    kept = ("state", "failed_job_ids", "uncompensated_steps", "failed_compensation_index")
    assert [after[name] for name in kept] == [before[name] for name in kept]
    assert undone(after) == ["not_fired", "failed", None]


def test_a_compensation_is_retried_as_its_own_policy_says(api):
    undo = {"type": "undo", "args": [7], "options": {"retry": {"max_attempts": 2}}}
    saga = create(api, type="chain", steps=[step("a", compensate=undo), step("b")])
    api.ack(api.fetch()[0]["id"])
    api.nack(api.fetch()[0]["id"], retryable=False)

    (first,) = api.fetch()
    api.nack(first["id"])

    assert look(api, saga)["state"] == "compensating"
    assert Job.objects.get(pk=first["id"]).state == "retryable"


def test_a_chain_whose_steps_name_compensations_is_a_saga(api):
    chain = create(api, type="chain", steps=[step("a", "undo.a"), step("b"), step("c", "undo.c")])

    ran = run(api, a=1, b=2, undo_a=None)

    # What failed did not complete, so it is not undone.
    assert types(ran) == ["a", "b", "c", "undo.a"]
    after = look(api, chain)
    assert (after["type"], after["state"]) == ("chain", "compensated")
    assert undone(after) == ["completed", None, "not_fired"]


def test_a_saga_whose_first_step_fails_has_nothing_to_undo(api):
    saga = create(api, **ORDER)

    assert types(run(api)) == ["inventory.reserve"]

    after = look(api, saga)
    assert after["state"] == "compensated"
    assert [node["state"] for node in after["steps"]] == ["failed", "cancelled", "cancelled"]


def test_a_step_that_is_a_workflow_is_undone_as_a_whole(api):
    both = {"type": "group", "jobs": [step("a"), step("b")], "compensate_type": "undo.both"}
    chain = create(api, type="chain", steps=[both, step("c")])

    ran = run(api, a=1, b=2, undo_both=None)

    assert types(ran)[2:] == ["c", "undo.both"]
    assert ran[3]["parent_results"][0] == [1, 2]
    assert look(api, chain)["state"] == "compensated"


def test_a_saga_inside_a_chain_undoes_itself_and_fails_the_chain(api):
    inner = {
        "type": "saga",
        "name": "inner",
        "steps": [step("a", "undo.a", name="first"), step("b", name="second")],
    }
    chain = create(api, type="chain", steps=[step("before", "undo.before"), inner, step("never")])

    ran = run(api, before=1, a=1, undo_a=None, undo_before=None)

    assert types(ran) == ["before", "a", "b", "undo.a", "undo.before"]
    after = look(api, chain)
    assert [node["state"] for node in after["steps"]] == ["completed", "compensated", "cancelled"]
    assert (after["state"], after["failed_step_index"]) == ("compensated", 1)
    assert after["failed_job_ids"] == [ran[2]["id"]]
    assert (after["steps_completed"], after["steps_failed"]) == (1, 1)


def test_a_compensation_waits_in_the_queue_of_its_step_or_where_it_says(api):
    reserve = step("a", "undo.a", options={"queue": "stock"})
    undo = {"type": "undo.b", "args": [], "options": {"queue": "money"}}
    charge = step("b", compensate=undo)
    create(api, type="chain", options={"queue": "steps"}, steps=[reserve, charge, step("c")])
    for queue in ("stock", "steps"):
        api.ack(api.fetch(queue)[0]["id"])
    api.nack(api.fetch("steps")[0]["id"], retryable=False)

    (undo_b,) = api.fetch("money")
    api.ack(undo_b["id"])

    assert types([undo_b, *api.fetch("stock")]) == ["undo.b", "undo.a"]


def test_the_story_of_a_saga_is_in_the_record_of_events(api):
    saga = create(api, **ORDER)
    run(api, inventory_reserve=1, payment_charge=2, payment_refund=3, inventory_release=4)

    events = api.see("events", subject=saga["id"]).json()["events"]

    assert [event["type"].removeprefix("workflow.") for event in events] == [
        "created",
        "started",
        "step_completed",
        "step_completed",
        "step_failed",
        "compensating",
        "compensation_fired",
        "compensation_completed",
        "compensation_fired",
        "compensation_completed",
        "compensated",
    ]
    data = [event["data"] for event in events]
    assert data[5]["failed_step_id"] == "ship-order"
    assert data[5]["error"]["message"] == "shipping_create broke"
    assert (data[6]["step_index"], data[6]["step_id"]) == (1, "charge-payment")
    assert (data[9]["step_id"], data[9]["step_type"]) == ("reserve-inventory", "inventory.release")
    assert data[4]["steps_remaining"] == 0
    assert data[10]["failed_step_index"] == 2


# Steps that end in other ways


def test_a_step_that_is_cancelled_has_failed_and_the_steps_before_it_are_undone(api):
    saga = create(api, **ORDER)
    api.ack(api.fetch()[0]["id"])
    waiting = look(api, saga)["steps"][1]["job_id"]

    api.send(f"jobs/{waiting}/cancel", {})

    assert types(run(api, inventory_release=1)) == ["inventory.release"]
    assert look(api, saga)["state"] == "compensated"


def test_a_step_that_cannot_be_enqueued_has_failed(api):
    unique = {"keys": ["type"], "period": "PT1H", "on_conflict": "reject"}
    twin = step("twin", options={"unique": unique})
    api.pushed(type="twin", unique=unique, queue="elsewhere")
    saga = create(api, type="chain", steps=[step("a", "undo.a"), twin])

    assert types(run(api, a=1, undo_a=1)) == ["a", "undo.a"]

    after = look(api, saga)
    assert (after["state"], after["failed_step_index"]) == ("compensated", 1)
    assert after["errors"][0]["code"] == "duplicate"


# Cancellation


def test_cancelling_a_running_saga_undoes_nothing(api):
    saga = create(api, **ORDER)
    api.ack(api.fetch()[0]["id"])

    assert api.delete(f"/ojs/v1/workflows/{saga['id']}").status_code == 200

    assert api.fetch() == []
    after = look(api, saga)
    assert (after["state"], undone(after)) == ("cancelled", ["not_fired", "not_fired", None])


def test_a_saga_that_undoes_its_steps_cannot_be_cancelled(api):
    saga = create(api, **ORDER)
    api.ack(api.fetch()[0]["id"])
    api.nack(api.fetch()[0]["id"], retryable=False)

    reply = api.delete(f"/ojs/v1/workflows/{saga['id']}")

    error = refusal(reply)
    assert (reply.status_code, error["code"]) == (409, "conflict")
    assert error["details"]["current_state"] == "compensating"
    assert types(run(api, inventory_release=1)) == ["inventory.release"]


def test_a_saga_that_undoes_its_steps_goes_on_when_the_workflow_around_it_is_cancelled(api):
    saga = {"type": "chain", "steps": [step("a", "undo.a"), step("b")]}
    group = create(api, type="group", jobs=[saga, step("later", options={"queue": "other"})])
    api.ack(api.fetch()[0]["id"])
    api.nack(api.fetch()[0]["id"], retryable=False)

    cancelled = api.delete(f"/ojs/v1/workflows/{group['id']}").json()["workflow"]

    assert [node["state"] for node in cancelled["jobs"]] == ["compensating", "cancelled"]
    assert types(run(api, undo_a=1)) == ["undo.a"]
    after = look(api, group)
    assert (after["state"], after["jobs"][0]["state"]) == ("cancelled", "compensated")


# Crashes, retention


class Crash(Exception):
    """The server stops at this statement."""


class Fuse:
    """Fails once, at the statement after so many."""

    def __init__(self, statements):
        self.left = statements

    def __call__(self, execute, sql, params, many, context):
        self.left -= 1
        if self.left == -1:
            raise Crash
        return execute(sql, params, many, context)


def settle(kind):
    job = Job.objects.get(type=kind, state="active")
    if kind == "bad":
        engine.fail([engine.Failure(job.pk, retryable=False)])
    else:
        engine.complete([engine.Completion(job.pk)])


@pytest.mark.slow
def test_after_a_crash_at_any_statement_each_compensation_still_runs_once(api):
    """Nothing of a verb that did not commit is left, so that its worker may repeat it."""
    steps = [step("a", "undo.a"), step("b", "undo.b"), step("bad")]
    saga = create(api, type="chain", steps=steps)
    crashes = 0
    for kind in ("a", "b", "bad", "undo.b", "undo.a"):
        assert types(api.fetch()) == [kind]
        before = list(Job.objects.order_by("pk").values("type", "state"))
        for number in range(200):
            try:
                with atomic(), connection.execute_wrapper(Fuse(number)):
                    settle(kind)
                break
            except Crash:
                crashes += 1
            assert list(Job.objects.order_by("pk").values("type", "state")) == before
            assert look(api, saga)["state"] in ("running", "compensating")

    assert crashes > 20, "the fuse is never reached"
    assert look(api, saga)["state"] == "compensated"
    assert Job.objects.filter(type__startswith="undo.", state="completed").count() == 2
    assert Job.objects.count() == 5


def test_the_sweep_sets_a_saga_going_again_that_a_hosts_own_sql_has_stopped(api):
    saga = create(api, **ORDER)
    api.ack(api.fetch()[0]["id"])
    api.nack(api.fetch()[0]["id"], retryable=False)
    Workflow.objects.update(created_at="2026-01-01T00:00Z")
    Job.objects.filter(type="inventory.release").update(
        state="completed", finished_at="2026-01-01T00:00Z"
    )

    assert engine.repair() == 1

    assert look(api, saga)["state"] == "compensated"
    assert engine.repair() == 0


def test_a_compensation_that_was_deleted_has_not_undone_anything(api):
    saga = create(api, **ORDER)
    api.ack(api.fetch()[0]["id"])
    api.nack(api.fetch()[0]["id"], retryable=False)
    Workflow.objects.update(created_at="2026-01-01T00:00Z")
    Job.objects.filter(type="inventory.release").delete()

    engine.repair()

    after = look(api, saga)
    assert (after["state"], after["uncompensated_steps"]) == ("failed", [0])


def test_a_compensated_saga_is_kept_as_long_as_a_failed_one(api, settings):
    saga = create(api, **ORDER)
    run(api, inventory_reserve=1, inventory_release=1)
    settings.OJS = {**settings.OJS, "COMPLETED_RETENTION": 0, "CANCELLED_RETENTION": 0}
    assert engine.prune_workflows() == 0
    settings.OJS = {**settings.OJS, "DEAD_LETTER_RETENTION": 0}

    assert engine.prune_workflows() == 1

    assert api.see(f"workflows/{saga['id']}").status_code == 404
    # The failed step stays in the dead letter, as a job of its own.
    assert Job.objects.get().type == "payment.charge"


# What is refused

NAMED = step("a", name="a")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"type": "saga", "steps": [step("a")]}, "invalid_workflow", "steps[0].name"),
        ({"type": "saga", "steps": [NAMED, NAMED]}, "invalid_workflow", "steps[1].name"),
        (
            {"type": "saga", "steps": [{"name": "a", "job_type": "NO", "args": []}]},
            "invalid_workflow",
            "steps[0].job_type",
        ),
        (
            {"type": "saga", "steps": [NAMED | {"job_type": "b"}]},
            "invalid_workflow",
            "steps[0].job_type",
        ),
        (
            {"type": "saga", "steps": [{"name": "a", "args": []}]},
            "invalid_workflow",
            "steps[0].type",
        ),
        (
            {"type": "saga", "steps": [NAMED], "failure_policy": "explode"},
            "invalid_workflow",
            "failure_policy",
        ),
        (
            {"type": "saga", "steps": [NAMED], "failure_policy": "skip"},
            "unsupported",
            "failure_policy",
        ),
        ({"steps": [step("a", "NO")]}, "invalid_workflow", "steps[0].compensate_type"),
        (
            {"steps": [step("a", "undo", compensate_args={})]},
            "invalid_workflow",
            "steps[0].compensate_args",
        ),
        (
            {"steps": [step("a", "undo", compensate=step("undo"))]},
            "invalid_workflow",
            "steps[0].compensate",
        ),
        (
            {"steps": [step("a", compensate={"type": "undo"})]},
            "invalid_workflow",
            "steps[0].compensate.args",
        ),
        (
            {"steps": [step("a", compensate=step("undo", "undo.undo"))]},
            "unsupported",
            "steps[0].compensate.compensate_type",
        ),
        ({"type": "group", "jobs": [step("a", "undo")]}, "unsupported", "jobs[0].compensate_type"),
        (
            {"type": None, "steps": [step("a", "undo", id="a")]},
            "unsupported",
            "steps[0].compensate_type",
        ),
        (
            {
                "type": "batch",
                "jobs": [step("a")],
                "callbacks": {"on_complete": step("b", "undo")},
            },
            "unsupported",
            "callbacks.on_complete.compensate_type",
        ),
        ({"steps": [step("a")], "compensate_type": "undo"}, "unsupported", "compensate_type"),
    ],
)
def test_a_compensation_that_nothing_would_run_is_refused(api, body, code, field):
    reply = api.send("workflows", {"type": "chain"} | body)

    error = refusal(reply)
    assert (error["code"], error["details"]["field"]) == (code, field)
    assert reply.status_code == (422 if code == "unsupported" else 400)
    assert not Workflow.objects.exists()


@pytest.mark.parametrize("policy", ["compensate", "retry"])
def test_a_step_is_retried_before_anything_is_undone(api, policy):
    flaky = step("b", name="b", options={"retry": {"max_attempts": 2}})
    steps = [step("a", "undo.a", name="a"), flaky]
    saga = create(api, type="saga", failure_policy=policy, steps=steps)
    api.ack(api.fetch()[0]["id"])

    api.nack(api.fetch()[0]["id"])

    assert look(api, saga)["state"] == "running"
