"""Workflows of very many jobs: creating one, the cost of its steps, cancelling and retrying it.

Creating one is one transaction, because a client gets all of it or none. Everything else is to be
done in small steps, and a step of a large workflow is to cost what one of a small workflow costs.
"""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import UUID

from django.utils import timezone

from jobs import engine
from jobs.access.audit import of_shell
from jobs.engine import Completion, bulk_operations
from jobs.models import BulkOperation, BulkState, Job, Workflow
from jobs.spec.lifecycle import WAITING
from jobs.spec.workflow_plans import plan_of

from .filling import execute
from .hot import timed
from .places import LARGE_WORKFLOWS
from .results import Results, percentile
from .upkeep import Watch, carry_out

QUEUE = "workflows"
STEPS = 100
"""Completions whose median is the cost of a step."""
STRETCHES = {"first steps": 0.0, "middle steps": 0.5, "last steps": 0.9}
"""The share of the steps that have completed before."""
COMPARED = 100
"""Jobs of the small workflow."""
# As if workers had completed the first of the waiting ones; `settled` as the engine does it.
COMPLETE = """
    WITH these AS (
        UPDATE ojs_jobs_job
           SET state = 'completed', attempt = 1, started_at = now(), finished_at = now()
         WHERE id IN (SELECT id
                        FROM ojs_jobs_job
                       WHERE workflow_id = %(workflow)s AND state = 'available'
                    ORDER BY id
                       LIMIT %(count)s)
     RETURNING id
    )
    UPDATE ojs_jobs_dependency SET settled = true WHERE predecessor_id IN (SELECT id FROM these)
"""
FAIL = """
    UPDATE ojs_jobs_job
       SET state = 'discarded', dead_letter = true, attempt = 3, started_at = now(),
           finished_at = now()
     WHERE workflow_id = %(workflow)s AND finished_at IS NULL AND state <> 'active'
"""

CLEAR = """
    UPDATE ojs_jobs_job
       SET state = 'cancelled', finished_at = now()
     WHERE queue = %(queue)s AND state = 'available'
"""


def group(count: int) -> dict[str, Any]:
    return {"type": "group", "jobs": [_job(n) for n in range(count)]}


def graph(count: int) -> dict[str, Any]:
    """One step, then all others but one side by side, then the last one."""
    middle = [_job(n) | {"id": f"step-{n}", "depends_on": ["first"]} for n in range(count - 2)]
    last = {"id": "last", "depends_on": [step["id"] for step in middle]}
    return {"type": "dag", "steps": [_job(0) | {"id": "first"}, *middle, _job(0) | last]}


def _job(number: int) -> dict[str, Any]:
    return {"type": "bench.noop", "args": [number], "options": {"queue": QUEUE}}


def run(count: int, results: Results, url: str) -> None:
    watch = Watch(results, url, ["queue-1"], LARGE_WORKFLOWS)
    for make in (group, graph):
        name = make.__name__
        execute(CLEAR, {"queue": QUEUE})
        small = _create(make(min(COMPARED, count)))
        if make is graph:
            _complete(1)
        base = _step_cost(min(COMPARED, count) // 4)
        watch.note(f"{name} of {COMPARED}: a step", base, "ms")
        engine.cancel_workflow(small.pk)
        _run(watch, name, make(count), base)


def _run(watch: Watch, name: str, document: dict[str, Any], base: float) -> None:
    megabytes = len(json.dumps(document)) / 1e6
    (count,) = (len(part) for part in document.values() if isinstance(part, list))
    name = f"{name} of {count:,}"
    made: list[Workflow] = []
    taken, plan = timed(lambda: plan_of(document, timezone.now()))
    watch.note(f"{name}: validation", taken / 1000, "s", f"a body of {megabytes:.1f} MB")

    def create() -> str:
        made.append(engine.create_workflow(plan))
        return "all or none"

    watch.work(f"{name}: creation", create)
    (workflow,) = made
    if "steps" in document:
        watch.work(f"{name}: the first step", lambda: _complete(1))
        watch.work(f"{name}: the first step frees the others", _release)
    steps = max(1, min(STEPS, count // 20))
    for stretch, share in STRETCHES.items():
        done = Job.objects.filter(workflow=workflow, finished_at__isnull=False).count()
        skipped = max(0, int(count * share) - done)
        execute(COMPLETE, {"workflow": workflow.pk, "count": skipped})
        execute("ANALYZE ojs_jobs_dependency")
        cost = _step_cost(steps)
        watch.note(f"{name}: {stretch}", cost, "ms")
        watch.note(f"{name}: {stretch}, of {COMPARED}", cost / base, "×")
    _cancel(watch, name, document)
    _retry(watch, name, workflow)


def _cancel(watch: Watch, name: str, document: dict[str, Any]) -> None:
    """Cancel another one of which nothing has run."""
    workflow = _create(document)

    def cancel() -> str:
        engine.cancel_workflow(workflow.pk)
        return _carry_out(workflow.pk)

    watch.work(f"{name}: cancelling", cancel)
    left = Job.objects.filter(workflow=workflow, state__in=sorted(WAITING)).count()
    if left:
        raise RuntimeError(f"{left} jobs of a cancelled workflow still wait.")


def _retry(watch: Watch, name: str, workflow: Workflow) -> None:
    """Retry what failed: half of it, say, while a service was down."""
    execute(FAIL, {"workflow": workflow.pk})

    def retry() -> str:
        wanted = {"workflow": str(workflow.pk)}
        bulk_operations.start("retry", wanted, actor=of_shell())
        return _carry_out(workflow.pk)

    watch.work(f"{name}: retrying", retry)


def _carry_out(workflow_id: UUID) -> str:
    """Do what was left to the reaper; stop it once."""
    left = BulkOperation.objects.filter(
        state=BulkState.RUNNING, filter__workflow=str(workflow_id)
    ).first()
    if left is None:
        return "at once"
    seen = carry_out(left)
    return f"{seen[-1]:,} jobs, progress seen {len(set(seen)):,} times"


def _create(document: dict[str, Any]) -> Workflow:
    return engine.create_workflow(plan_of(document, timezone.now()))


def _complete(count: int) -> str:
    """Claim and complete jobs of workflows, one after the other."""
    for _ in range(count):
        (job,) = engine.claim([QUEUE])
        engine.complete([Completion(job.id)])
    return ""


def _release() -> str:
    """Do what was left to the reaper."""
    turns = 0
    while engine.release_more():
        turns += 1
    return f"{turns} turns"


def _step_cost(count: int) -> float:
    """The median of the milliseconds in which a step is completed."""
    times = []
    for _ in range(max(1, count)):
        (job,) = engine.claim([QUEUE])
        began = time.perf_counter()
        engine.complete([Completion(job.id)])
        times.append((time.perf_counter() - began) * 1000)
    return percentile(times, 0.5)
