"""What of the fleet keeps a job from running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson
from django.utils.translation import gettext as _

from jobs.admin.why import reason
from jobs.expressions import JSONArrayHas
from jobs.lifecycle import State
from jobs.models import JobSpec

from ..abilities import able
from ..condition import Condition, condition, in_hand
from ..models import Worker


@reason
def nobody_serves_it(job: Any) -> Iterator[str]:
    """No live worker, none that runs, or none with a hand free."""
    if job.state == State.PENDING:
        return
    serving = Worker.objects.live().filter(JSONArrayHas("queues", job.queue))
    found = list(
        serving.annotate(in_hand=in_hand())
        .annotate(condition=condition())
        .values_list("condition", "in_hand", "concurrency")
    )
    about = {"queue": job.queue}
    if not found:
        yield _("No live worker serves the queue “%(queue)s”.") % about
        return
    running = [(held, most) for state, held, most in found if state == Condition.RUNNING]
    if not running:
        yield _("No worker that serves “%(queue)s” is running: they are quiet or silent.") % about
    elif all(most is not None and held >= most for held, most in running):
        text = _("All %(count)d workers that serve “%(queue)s” are busy.")
        yield text % (about | {"count": len(running)})


DESCRIBED = ("worker_id", "project", "job_types", "specs", "labels", "capabilities")


@reason
def nobody_suits_it(job: Any) -> Iterator[str]:
    """Workers serve its queue, and none of them is given jobs like this one."""
    if job.state == State.PENDING:
        return
    serving = Worker.objects.live().filter(JSONArrayHas("queues", job.queue))
    spec = JobSpec.objects.filter(pk=job.type).values_list("checksum", flat=True).first()
    obstacles = Counter(_obstacle(job, worker, spec) for worker in serving.values(*DESCRIBED))
    if "" in obstacles:
        return
    for obstacle, count in sorted(obstacles.items()):
        yield _("Not for %(count)d of the workers that serve its queue: %(obstacle)s.") % {
            "count": count,
            "obstacle": obstacle,
        }


def _obstacle(job: Any, worker: dict[str, Any], spec: str | None) -> str:
    """Why a worker is not given the job; empty if it is."""
    if worker["project"] not in ("", job.project):
        return _("it is not of their project")
    if worker["job_types"] is not None and job.type not in worker["job_types"]:
        return _("they registered for other types of jobs")
    if worker["specs"] is not None:
        if job.type not in worker["specs"]:
            return _("they registered for other types of jobs")
        if worker["specs"][job.type] != spec:
            return _("their checksum of its type is not the registered one")
    words = orjson.dumps(worker["labels"]).decode(), orjson.dumps(worker["capabilities"]).decode()
    if not set(job.needs or ()).issubset(able(worker["worker_id"], *words)):
        return _("they lack something it needs")
    return ""
