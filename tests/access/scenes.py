"""What keys are used on: a worker with jobs in its hands, and all that hangs on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from jobs import engine
from jobs.models import (
    Checkpoint,
    CronJob,
    Job,
    JobError,
    JobSchema,
    ProgressReport,
    Queue,
    RateLimit,
    Workflow,
)
from jobs.spec.cron_requests import new_cron_job
from jobs.spec.versions import version_number
from jobs.spec.workflow_plans import plan_of
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory
from workers.models import Worker

from .kinds import LABEL, PROJECT, WORKER, Kind

SECRET = "s3cret-of-the-job"
ARGS = [{"password": SECRET}]
KEPT = (Job, JobError, Worker, Checkpoint, ProgressReport, CronJob, Workflow, RateLimit, JobSchema)


@dataclass
class Scene:
    """Everything that commands are used on; `project`, `worker` and its label say whose it is."""

    project: str
    worker: str
    queue: str
    jobs: dict[str, Job]
    workflow: Workflow
    cron: str
    schema: str
    limit: str


def rows() -> dict[tuple[str, Any], Any]:
    """All that may be changed, as it is."""
    return {
        (model.__name__, row.pk): {
            field.attname: getattr(row, field.attname) for field in model._meta.concrete_fields
        }
        for model in KEPT
        for row in model._default_manager.all()
    }


def is_untouched(before: dict[tuple[str, Any], Any]) -> bool:
    """Whether all that was there is as it was. New things may have been added."""
    after = rows()
    return all(after.get(key) == row for key, row in before.items())


def scene(kind: Kind, mark: str = "") -> Scene:
    """Make what a kind of key is used on: its own, or others'.

    Args:
        mark: tells several scenes in one database apart.
    """
    project = "other" if kind.on_others and "project" in kind.bound else PROJECT
    worker = ("theirs" if kind.on_others else WORKER) + mark
    labels = [] if kind.on_others and "label" in kind.bound else [LABEL]
    queue = f"default{mark}"
    Queue.objects.get_or_create(name=queue)
    WorkerFactory(
        worker_id=worker,
        project=project,
        labels=labels,
        queues=[queue],
        protocol="agq",
        capabilities=["jq"],
        details={"worker_id": worker},
        stats={"cpu": 0.5},
        stats_at=timezone.now(),
        session=kind.record.digest if kind.record else "",
    )
    about = {"project": project, "queue": queue, "args": ARGS}
    jobs = {
        "available": JobFactory(**about),
        "pending": JobFactory(pending=True, **about),
        "active": JobFactory(active=True, reserved_by=worker, **about),
        "completed": JobFactory(completed=True, finished_by=worker, result=ARGS, **about),
        "dead": JobFactory(dead=True, **about),
    }
    JobErrorFactory(job=jobs["dead"], message=f"login(password='{SECRET}')")
    engine.save_checkpoint(jobs["active"].pk, {"token": SECRET}, worker_id=worker)
    step = {"type": "a.b", "args": ARGS, "options": {"queue": f"flow{mark}"}}
    workflow = engine.create_workflow(
        plan_of({"type": "chain", "steps": [step, step]}, timezone.now()), project=project
    )
    cron = f"nightly{mark}"
    nightly = {"name": cron, "cron": "0 3 * * *", "type": "a.b", "args": ARGS}
    engine.upsert_cron(replace(new_cron_job(nightly, timezone.now()), project=project))
    engine.register_specs({f"a.type{mark}": "v1"})
    RateLimit.objects.create(key=f"limit{mark}")
    JobSchema.objects.create(
        type=f"a.type{mark}", version="1.0", version_number=version_number("1.0"), schema={"a": 1}
    )
    return Scene(project, worker, queue, jobs, workflow, cron, f"a.type{mark}", f"limit{mark}")
