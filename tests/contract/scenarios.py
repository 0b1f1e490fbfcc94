"""Scenarios for jobs. Their names are those of the files in `golden/`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from jobs import engine
from jobs.access.projects import assign_project
from jobs.engine import Completion, Failure, NewCronJob
from jobs.models import CronJob, Event, Job, OverlapPolicy, Workflow
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from jobs.spec.workflow_plans import plan_of
from workers import protocol
from workers.chores import reaper
from workers.liveness import job_heartbeats as liveness
from workers.models import Worker
from workers.protocol import Description

from .world import World

Scenario = Callable[[World], None]
SCENARIOS: dict[str, Scenario] = {}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
STEADY = {"max_attempts": 3, "initial_interval": "PT1H", "jitter": False}
"""A policy with predictable delays."""


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def in_an_hour() -> str:
    return (timezone.now() + HOUR).isoformat()


def take(world: World, *queues: str, **asked: Any) -> list[UUID]:
    """Fetch for the worker `w`."""
    found = world.do(protocol.fetch, queues or ["default"], **{"worker_id": "w"} | asked)
    return [job.id for job in found]


def finish(world: World, *job_ids: UUID, **said: Any) -> None:
    items = [Completion(job_id, **{"worker_id": "w"} | said) for job_id in job_ids]
    world.do(protocol.ack, items)


def give_up(world: World, job_id: UUID, **said: Any) -> None:
    world.do(protocol.fail, [Failure(job_id, **{"worker_id": "w"} | said)])


# Enqueueing


@scenario
def enqueue_each_shape(world: World) -> None:
    """One by one, because a single job has its own statement."""
    for name, document in {
        "plain": {},
        "rich": {
            "args": [1, "two", {"three": [None, 4.5]}],
            "meta": {"tenant": "acme"},
            "priority": 7,
            "queue": "mail",
            "tags": ["a", "b"],
            "x_trace": "kept as it came",
        },
        "pending": {"pending": True},
        "delayed": {"delay_until": in_an_hour()},
        "expiring": {"expires_at": in_an_hour()},
        "timed": {"timeout": 60, "visibility_timeout_ms": 90_500, "total_timeout": 86400},
        "kept": {"result_ttl": 3600, "enqueue_ttl": 7200},
        "stubborn": {"retry": STEADY | {"on_exhaustion": "discard"}},
        "needy": {"meta": {"capabilities": ["gpu", "jq"]}},
        "versioned@2.1": {},
        "chosen": {"id": "019539a4-b68c-7def-8000-1a2b3c4d5e6f"},
    }.items():
        world.enqueue({"type": name} | document)
    world.enqueue({"type": "chosen", "id": "019539a4-b68c-7def-8000-1a2b3c4d5e6f"})


@scenario
def enqueue_a_batch(world: World) -> None:
    """Jobs that differ only in their arguments also have their own statement."""
    world.enqueue(*({"type": "alike", "args": [number], "priority": 2} for number in range(3)))
    world.enqueue({"type": "one"}, {"type": "two", "delay_until": in_an_hour()}, {"type": "three"})
    world.enqueue(*({"type": "late", "delay_until": in_an_hour()} for _ in range(2)))


@scenario
def enqueue_what_is_unique(world: World) -> None:
    for conflict in ("reject", "ignore", "replace"):
        for number in range(2):
            unique = {"keys": ["type"], "on_conflict": conflict}
            world.enqueue({"type": conflict, "args": [number], "unique": unique})


@scenario
def enqueue_what_waits_for_others(world: World) -> None:
    first, second = world.enqueue({"type": "first"}, {"type": "second"})
    for name, needs, condition in (
        ("after.success", [first], "success"),
        ("after.both", [first, second], "success"),
        ("after.any.end", [second], "settled"),
    ):
        job = new_job({"type": name, "args": []}, timezone.now())
        world.do(engine.enqueue_after, [job], {job.id: needs}, condition=condition)
    take(world, count=2)
    finish(world, first, result={"rows": 3})
    give_up(world, second, retryable=False, message="broken")


@scenario
def activate_what_is_pending(world: World) -> None:
    (job,) = world.enqueue({"type": "staged", "pending": True})
    world.do(engine.activate, job)
    world.do(engine.prioritize, job, 9)
    world.do(engine.activate, job)


# Fetching


@scenario
def fetch_by_priority_and_queue(world: World) -> None:
    world.enqueue({"type": "low", "priority": -5}, {"type": "high", "priority": 5})
    world.enqueue({"type": "elsewhere", "queue": "urgent"})
    world.enqueue({"type": "needy", "priority": 9, "meta": {"capabilities": ["gpu"]}})
    take(world, "urgent", "default", count=2)
    take(world, count=5, visibility_timeout=2 * HOUR)
    take(world, types=["nothing"])


@scenario
def fetch_what_is_due(world: World) -> None:
    """Before the reaper has run."""
    scheduled, retried = world.enqueue(
        {"type": "scheduled", "delay_until": in_an_hour()}, {"type": "retried", "retry": STEADY}
    )
    take(world)
    give_up(world, retried, type="IOError", message="try later", backtrace=["a", "b"])
    world.backdate(scheduled, scheduled_at=HOUR)
    world.backdate(retried, scheduled_at=HOUR)
    take(world, count=2)


@scenario
def promote_what_is_due(world: World) -> None:
    scheduled, retried = world.enqueue(
        {"type": "scheduled", "delay_until": in_an_hour()}, {"type": "retried", "retry": STEADY}
    )
    take(world)
    give_up(world, retried, code="BUSY", retryable=True)
    world.backdate(scheduled, scheduled_at=HOUR)
    world.backdate(retried, scheduled_at=HOUR)
    world.do(engine.promote_due)
    take(world, count=2)


@scenario
def fetch_and_ack_in_one(world: World) -> None:
    world.enqueue(*({"type": f"job.{name}"} for name in "abc"))
    first, second = take(world, count=2)
    done = [Completion(first, worker_id="w", result=[1]), Completion(second, worker_id="other")]
    world.do(protocol.exchange, done, ["default"], worker_id="w", count=2)


@scenario
def fetch_by_a_worker_that_says_nothing(world: World) -> None:
    (job,) = world.enqueue({"type": "anonymous"})
    take(world, worker_id="")
    finish(world, job, worker_id=None)


# Settling


@scenario
def fail_and_try_again(world: World) -> None:
    policy, asked, released, later = world.enqueue(
        {"type": "by.policy", "retry": STEADY},
        {"type": "as.asked", "retry": STEADY},
        {"type": "released"},
        {"type": "released.for.later"},
    )
    take(world, count=4)
    give_up(world, policy, type="IOError", code="E1", message="lost", details={"host": "a"})
    give_up(world, asked, retry_in=2 * HOUR)
    give_up(world, released, release=True)
    give_up(world, later, release=True, retry_in=HOUR)
    take(world)


@scenario
def fail_for_good(world: World) -> None:
    once = {"max_attempts": 1}
    jobs = world.enqueue(
        {"type": "exhausted", "retry": once},
        {"type": "exhausted.and.dropped", "retry": once | {"on_exhaustion": "discard"}},
        {"type": "not.retryable"},
        {"type": "named.by.policy", "retry": {"non_retryable_errors": ["ValueError"]}},
        {"type": "discarded.by.handler"},
        {"type": "buried.by.handler", "retry": {"on_exhaustion": "discard"}},
    )
    take(world, count=6)
    exhausted, dropped, final, named, discarded, buried = jobs
    give_up(world, exhausted)
    give_up(world, dropped)
    give_up(world, final, retryable=False)
    give_up(world, named, type="ValueError")
    give_up(world, discarded, code="DISCARD")
    give_up(world, buried, code="DEAD_LETTER")
    give_up(world, buried)


@scenario
def fail_many_at_once(world: World) -> None:
    """In one request, so that a single statement moves jobs in each way that there is."""
    once = {"max_attempts": 1}
    jobs = world.enqueue(
        {"type": "in.an.hour", "retry": STEADY},
        {"type": "in.two", "retry": STEADY, "enqueue_ttl": 7200},
        {"type": "released", "enqueue_ttl": 7200},
        {"type": "released.for.later"},
        {"type": "exhausted", "retry": once},
        {"type": "exhausted.and.dropped", "retry": once | {"on_exhaustion": "discard"}},
        {"type": "unfenced", "retry": once},
        {"type": "of.another"},
    )
    take(world, count=7)
    take(world, worker_id="another")
    said: dict[str, dict[str, Any]] = {
        "in.an.hour": {"type": "IOError"},
        "in.two": {"retry_in": 2 * HOUR},
        "released": {"release": True},
        "released.for.later": {"release": True, "retry_in": HOUR},
        "exhausted": {"details": {"host": "a"}},
        "exhausted.and.dropped": {},
        "unfenced": {"worker_id": None},
        "of.another": {},
    }
    items = [
        Failure(job_id, **{"worker_id": "w"} | more)
        for job_id, more in zip(jobs, said.values(), strict=True)
    ]
    world.do(protocol.fail, [*items, items[0]])
    take(world)


# Time


@scenario
def expire_reservations(world: World) -> None:
    again, last, half = world.enqueue(
        {"type": "again", "enqueue_ttl": 7200},
        {"type": "last", "retry": {"max_attempts": 1, "on_exhaustion": "discard"}},
        {"type": "half.a.second", "visibility_timeout_ms": 500},
    )
    take(world, count=3)
    for job in (again, last, half):
        world.backdate(job, reserved_until=HOUR)
    world.do(engine.expire)
    take(world)


@scenario
def recover_from_a_workers_death(world: World) -> None:
    world.do(protocol.register, "w", Description(queues=["default"], protocol="ojs"))
    world.enqueue({"type": "again"}, {"type": "last", "retry": {"max_attempts": 1}})
    take(world, count=2)
    Worker.objects.update(last_heartbeat_at=timezone.now() - HOUR)
    world.do(reaper.declare_dead_workers)
    world.do(reaper.reclaim_orphans)


@scenario
def run_out_of_time(world: World) -> None:
    slow, long, late, old = world.enqueue(
        {"type": "slow", "timeout": 60, "retry": STEADY},
        {"type": "long", "total_timeout": 7200},
        {"type": "late", "enqueue_ttl": 7200, "priority": -1},
        {"type": "old", "expires_at": in_an_hour(), "priority": -1},
    )
    take(world, count=2)
    world.backdate(slow, started_at=HOUR)
    world.backdate(long, deadline=HOUR, created_at=3 * HOUR)
    world.backdate(late, expires_at=HOUR, created_at=3 * HOUR)
    world.backdate(old, expires_at=HOUR, created_at=3 * HOUR)
    world.do(engine.time_out)
    world.do(engine.discard_overdrawn)
    world.do(engine.discard_expired)


@scenario
def hear_of_a_worker(world: World) -> None:
    (job,) = world.enqueue({"type": "long"})
    take(world)
    world.do(protocol.beat, "w", active_job_ids=[str(job)], requested=3 * HOUR)
    world.do(engine.report_progress, job, value=0.25, data={"page": 1}, worker_id="w")
    world.do(engine.save_checkpoint, job, {"page": 1}, worker_id="w", attempt=1)
    world.do(protocol.beat, "w", active_job_ids=[str(job)])
    give_up(world, job, release=True)
    take(world)
    finish(world, job)
    world.do(protocol.deregister, "w")


@scenario
def keep_a_job_alive(world: World) -> None:
    """Like Flare's heartbeats, each of which is about one job."""
    (job,) = world.enqueue({"type": "long", "timeout": 7200})
    take(world)
    world.do(engine.reserve, {job: 2 * HOUR}, worker_id="w")
    alive: dict[str, Any] = {"share": 0.5, "at_least": HOUR, "progress": 0.5}
    world.do(liveness.keep_alive, job, "w", **alive)
    world.do(liveness.keep_alive, job, "other", **alive)
    world.do(engine.cancel, job)
    world.do(liveness.keep_alive, job, "w", **alive)


@scenario
def live_in_a_project(world: World) -> None:
    new = [new_job({"type": "ours", "args": []}, timezone.now())]
    world.do(engine.enqueue, assign_project(new, "acme"))
    world.enqueue({"type": "unowned"})
    (job,) = take(world, project="acme", count=5)
    world.do(protocol.ack, [Completion(job, worker_id="w")], project="other")
    world.do(protocol.ack, [Completion(job, worker_id="w")], project="acme")


# Operators


@scenario
def cancel_in_each_state(world: World) -> None:
    jobs = world.enqueue(
        {"type": "running", "priority": 9},
        {"type": "failed", "priority": 8, "retry": STEADY},
        {"type": "done", "priority": 7},
        {"type": "available"},
        {"type": "pending", "pending": True},
        {"type": "scheduled", "delay_until": in_an_hour()},
    )
    take(world, count=3)
    give_up(world, jobs[1])
    finish(world, jobs[2])
    for job in jobs:
        world.do(engine.cancel, job, cancelled_by="operator", reason="not needed")
    world.do(engine.cancel, jobs[0])


@scenario
def cancel_many(world: World) -> None:
    jobs = world.enqueue({"type": "one"}, {"type": "two"}, {"type": "done", "priority": 5})
    finish(world, *take(world))
    world.do(engine.cancel_jobs, jobs, reason="maintenance")


@scenario
def retry_the_dead(world: World) -> None:
    (job,) = world.enqueue({"type": "dead", "retry": {"max_attempts": 1}})
    take(world)
    give_up(world, job, message="first")
    world.do(engine.retry, [job])
    take(world)
    give_up(world, job, message="second")
    world.do(engine.delete_dead, [job])


@scenario
def run_what_waits_now(world: World) -> None:
    scheduled, retried = world.enqueue(
        {"type": "scheduled", "delay_until": in_an_hour()}, {"type": "retried", "retry": STEADY}
    )
    take(world)
    give_up(world, retried)
    world.do(engine.run_now, [scheduled, retried])


@scenario
def pause_a_queue(world: World) -> None:
    world.enqueue({"type": "waits", "queue": "mail"})
    world.do(engine.pause, "mail", paused_by="operator", reason="the provider is down")
    take(world, "mail")
    world.enqueue({"type": "waits.too", "queue": "mail"})
    world.do(engine.resume, "mail", resumed_by="operator")
    take(world, "mail", count=2)


@scenario
def delete_a_queue(world: World) -> None:
    world.enqueue({"type": "moved", "queue": "old"}, {"type": "moved.later", "queue": "old"})
    world.do(engine.queues.delete, "old", strategy="move", target="new")
    world.enqueue({"type": "dropped", "queue": "older"})
    world.do(engine.queues.delete, "older", strategy="discard")


# Limits


@scenario
def keep_within_the_concurrency_of_a_queue(world: World) -> None:
    world.do(engine.queues.configure, "narrow", {"concurrency": 1})
    world.enqueue(*({"type": f"job.{name}", "queue": "narrow"} for name in "ab"))
    jobs = take(world, "narrow", count=5)
    take(world, "narrow", count=5)
    finish(world, *jobs)
    take(world, "narrow", count=5)


@scenario
def keep_within_the_limits_of_a_key(world: World) -> None:
    limit = {"key": "api", "concurrency": 1}
    world.enqueue(*({"type": f"job.{name}", "rate_limit": limit} for name in "ab"))
    jobs = take(world, count=5)
    take(world, count=5)
    give_up(world, *jobs, rate_limit_until=timezone.now() + HOUR, retry_in=2 * HOUR)
    take(world, count=5)


@scenario
def bound_a_queue(world: World) -> None:
    world.do(engine.queues.configure, "short", {"max_depth": 1, "strategy": "reject"})
    world.enqueue({"type": "fits", "queue": "short"})
    world.enqueue({"type": "refused", "queue": "short"})
    world.do(engine.queues.configure, "short", {"max_depth": 1, "strategy": "drop_oldest"})
    world.enqueue({"type": "newer", "queue": "short"})


@scenario
def keep_within_a_rate(world: World) -> None:
    limit = {"key": "slow", "rate": {"limit": 1, "period": "PT1H"}}
    world.enqueue(*({"type": f"job.{name}", "rate_limit": limit} for name in "ab"))
    take(world, count=5)
    take(world, count=5)


# Workflows


def begin(world: World, document: dict[str, Any]) -> None:
    world.do(engine.create_workflow, plan_of(document, timezone.now()))


def work_off(world: World, **results: Any) -> None:
    """Finish each job with the result given for its type; jobs without one fail."""
    while jobs := world.do(protocol.fetch, ["default"], worker_id="w"):
        for job in jobs:
            name = job.type.replace(".", "_")
            if name in results:
                finish(world, job.id, result=results[name])
            else:
                give_up(world, job.id, retryable=False, message=f"{job.type} is broken")


def step(name: str, **more: Any) -> dict[str, Any]:
    return {"type": name, "args": []} | more


@scenario
def work_off_a_chain(world: World) -> None:
    begin(world, {"type": "chain", "name": "report", "steps": [step("fetch"), step("send")]})
    work_off(world, fetch={"rows": 3}, send=None)


@scenario
def break_a_chain(world: World) -> None:
    begin(world, {"type": "chain", "steps": [step("fetch"), step("parse"), step("send")]})
    work_off(world, fetch=1)


@scenario
def work_off_a_group(world: World) -> None:
    begin(world, {"type": "group", "jobs": [step("left"), step("right")]})
    work_off(world, left=1, right=2)


@scenario
def work_off_a_batch_with_callbacks(world: World) -> None:
    callbacks = {name: step(name.replace("_", ".")) for name in ("on_complete", "on_success")}
    batch = {"type": "batch", "jobs": [step("left"), step("right")], "callbacks": callbacks}
    begin(world, batch)
    work_off(world, left=1, right=2, on_complete=None, on_success=None)


@scenario
def break_a_batch_with_callbacks(world: World) -> None:
    names = ("on_complete", "on_success", "on_failure")
    callbacks = {name: step(name.replace("_", ".")) for name in names}
    begin(world, {"type": "batch", "jobs": [step("good"), step("bad")], "callbacks": callbacks})
    work_off(world, good=1, on_complete=None, on_failure=None)


@scenario
def work_off_a_nested_workflow(world: World) -> None:
    inner = {"type": "group", "jobs": [step("left"), step("right")]}
    begin(world, {"type": "chain", "steps": [step("first"), inner, step("last")]})
    work_off(world, first="a", left="b", right="c", last="d")


@scenario
def work_off_a_graph(world: World) -> None:
    graph = [
        step("source", id="a"),
        step("left", id="b", depends_on=["a"]),
        step("right", id="c", depends_on=["a"]),
        step("sink", id="d", depends_on=["b", "c"]),
    ]
    begin(world, {"steps": graph})
    work_off(world, source=1, left=2, right=3, sink=4)


SAGA = {
    "type": "saga",
    "name": "order",
    "steps": [
        step("reserve", compensate_type="release", compensate_args=["SKU", 2]) | {"name": "stock"},
        step("charge", compensate=step("refund", tags=["undo"])) | {"name": "money"},
        step("ship") | {"name": "parcel"},
    ],
}


@scenario
def undo_what_a_saga_did(world: World) -> None:
    begin(world, SAGA)
    work_off(world, reserve="r1", charge={"id": 7}, refund=True, release=None)


@scenario
def undo_what_a_saga_did_as_far_as_possible(world: World) -> None:
    begin(world, SAGA)
    work_off(world, reserve="r1", charge={"id": 7}, release=None)


@scenario
def work_off_a_saga(world: World) -> None:
    begin(world, SAGA)
    work_off(world, reserve="r1", charge={"id": 7}, ship=None)


@scenario
def cancel_around_a_saga_that_compensates(world: World) -> None:
    saga = {"type": "chain", "steps": [step("first", compensate_type="undo"), step("bad")]}
    plan = plan_of({"type": "group", "jobs": [saga, step("never", priority=-1)]}, timezone.now())
    group = world.do(engine.create_workflow, plan)
    (inner,) = Workflow.objects.filter(parent=group.pk)
    finish(world, *take(world))
    give_up(world, take(world)[0], retryable=False)
    world.do(engine.cancel_workflow, inner.pk)
    world.do(engine.cancel_workflow, group.pk)
    work_off(world, undo=True)


@scenario
def cancel_a_workflow(world: World) -> None:
    workflow = world.do(
        engine.create_workflow,
        plan_of({"type": "chain", "steps": [step("first"), step("never")]}, timezone.now()),
    )
    take(world)
    world.do(engine.cancel_workflow, workflow.pk)


@scenario
def lose_jobs_of_a_cancelled_workflow(world: World) -> None:
    jobs = [step(name, retry=STEADY) for name in ("failed", "released", "lost")]
    workflow = world.do(
        engine.create_workflow, plan_of({"type": "group", "jobs": jobs}, timezone.now())
    )
    failed, released, lost = take(world, count=3)
    world.do(engine.cancel_workflow, workflow.pk)
    world.do(engine.fail, [Failure(failed, message="late"), Failure(released, release=True)])
    world.backdate(lost, reserved_until=DAY)
    world.do(engine.expire)


# Schedules, retention


@scenario
def run_a_schedule(world: World) -> None:
    for name, policy in (
        ("left.out", OverlapPolicy.SKIP),
        ("held", OverlapPolicy.ENQUEUE),
        ("beside", OverlapPolicy.ALLOW),
        ("instead", OverlapPolicy.CANCEL_PREVIOUS),
    ):
        template = {"type": name, "args": [1], "options": {"queue": "reports"}}
        world.do(
            engine.upsert_cron,
            NewCronJob(name, "@every 24h", template, overlap_policy=policy),
        )
    long_ago = timezone.now() - DAY
    for _ in range(2):
        CronJob.objects.update(next_run_at=long_ago, anchored_at=long_ago - DAY)
        world.do(engine.enqueue_due_schedules)


@scenario
def forget_what_is_over(world: World) -> None:
    jobs = world.enqueue(
        {"type": "long.done"}, {"type": "with.a.result", "result_ttl": 3600}, {"type": "fresh"}
    )
    take(world, count=3)
    finish(world, *jobs, result={"a": 1})
    world.backdate(jobs[0], finished_at=400 * DAY)
    world.backdate(jobs[1], finished_at=2 * HOUR)
    world.do(engine.prune_jobs)
    world.do(engine.prune_results)
    Event.objects.filter(type="job.started").update(time=timezone.now() - 400 * DAY)
    world.do(engine.prune_events)
    assert not Event.objects.filter(type="job.started").exists()
    assert Job.objects.filter(state=State.COMPLETED).count() == 2
