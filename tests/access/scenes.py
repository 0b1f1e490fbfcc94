"""Objects that keys are used on: a worker that holds jobs, and everything connected with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.utils import timezone

from jobs import engine
from jobs.models import (
    Checkpoint,
    CronJob,
    Event,
    Job,
    JobError,
    JobSchema,
    Pool,
    ProgressReport,
    Queue,
    RateLimit,
    Tenant,
    Workflow,
)
from jobs.record.events import job_event
from jobs.spec.cron_requests import new_cron_job
from jobs.spec.versions import version_number
from jobs.spec.worker_ids import SEPARATOR, qualified
from jobs.spec.workflow_plans import plan_of
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory, ago
from workers.models import Directive, WebhookDelivery, WebhookSubscription, Worker

from .kinds import LABEL, PROJECT, WORKER, Kind

SECRET = "s3cret-of-the-job"
ARGS = [{"password": SECRET}]
KEPT = (
    Job,
    JobError,
    Worker,
    Checkpoint,
    ProgressReport,
    CronJob,
    Workflow,
    RateLimit,
    JobSchema,
    Tenant,
    Pool,
    WebhookSubscription,
    WebhookDelivery,
)


@dataclass
class Scene:
    """The objects that commands are used on; `project`, `worker` and its label are the owner."""

    project: str
    worker: str
    queue: str
    jobs: dict[str, Job]
    workflow: Workflow
    cron: str
    schema: str
    limit: str
    delivery: WebhookDelivery


def rows() -> dict[tuple[str, Any], Any]:
    """The current values of everything that may be changed."""
    return {
        (model.__name__, row.pk): {
            field.attname: getattr(row, field.attname) for field in model._meta.concrete_fields
        }
        for model in KEPT
        for row in model._default_manager.all()
    }


def is_untouched(before: dict[tuple[str, Any], Any], project: str = "") -> bool:
    """Whether everything that existed is unchanged. New things may have been added.

    Args:
        project: its objects may have changed.
    """
    after = rows()
    return all(
        after.get(key) == row
        for key, row in before.items()
        if not (project and row.get("project") == project)
    )


TWINS_HOST = "host-of-the-twin"
"""Location of another project's worker with the same id."""
SHARED_LABEL = "label-of-the-twin"


def double(s: Scene) -> None:
    """Let another project's worker have the scene's worker id first, with a history."""
    name = qualified(s.worker, s.project)
    Worker.objects.filter(pk=s.worker).update(worker_id=name)
    Job.objects.filter(reserved_by=s.worker).update(reserved_by=name)
    Job.objects.filter(finished_by=s.worker).update(finished_by=name)
    JobError.objects.filter(job__queue=s.queue).update(worker_id=name)
    for job in s.jobs.values():
        event = job_event("job.started", job, time=timezone.now(), worker_id=name)
        Event.objects.bulk_create([event])
    twin = WorkerFactory(
        worker_id=s.worker,
        project="twin",
        hostname=TWINS_HOST,
        labels=[SHARED_LABEL],
        capabilities=[SHARED_LABEL],
        details={"hostname": TWINS_HOST},
    )
    JobFactory(project="twin", queue=s.queue, active=True, reserved_by=twin.pk, type="twin.job")
    Directive.objects.create(
        worker_id=twin.pk,
        state="quiet",
        asked_by=TWINS_HOST,
        source="api",
        asked_at=ago(10),
        answer="reported",
    )


def tells_of_twin(shown: str) -> bool:
    """Whether a reply reveals that another project's worker has the same id."""
    return any(text in shown for text in (SEPARATOR, TWINS_HOST, SHARED_LABEL, "twin"))


def scene(kind: Kind, mark: str = "") -> Scene:
    """Create the objects that a kind of key is used on: its own, or others'.

    Args:
        mark: distinguishes several scenes in one database.
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
        heartbeat_timeout=timedelta(hours=1),  # it is not heard of while a slow test runs
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
    error = {"type": "broken", "message": f"login(password='{SECRET}')"}
    failed = job_event("job.failed", jobs["dead"], time=ago(1), data={"error": error})
    Event.objects.bulk_create([failed])
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
        type=f"a.type{mark}",
        version="1.0",
        version_number=version_number("1.0"),
        schema={"a": 1},
        uri=f"urn:a.type{mark}",
    )
    Tenant.objects.get_or_create(pk=project)
    Pool.objects.get_or_create(pk=queue, defaults={"queues": [queue]})
    hook = WebhookSubscription.objects.create(
        # Refused before anything is sent.
        url="https://127.0.0.1/",
        events=["job.*"],
        secret=f"whsec_{SECRET}",
        project=project,
    )
    delivery = WebhookDelivery.objects.create(
        subscription=hook,
        event_id="evt_1",
        event_type="job.completed",
        body="{}",
        created_at=timezone.now(),
        next_try_at=timezone.now(),
    )
    limit, schema = f"limit{mark}", f"a.type{mark}"
    return Scene(project, worker, queue, jobs, workflow, cron, schema, limit, delivery)
