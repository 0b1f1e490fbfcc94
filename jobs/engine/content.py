"""The rules of an enqueue about the content of jobs, for jobs that are not enqueued right now.

They are later jobs of a workflow, those of a schedule, and stored jobs that are changed or moved to
another queue. An enqueue applies the same rules while it stores its jobs (`insertion`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db.models import CharField

from ..access.projects import refuse_other_tenant
from ..models import Job
from ..spec import rate_policy
from ..spec.operator_requests import Override
from ..spec.validation import NewJob, needs_of, refuse_large_meta
from ..store.expressions import Among, Each
from . import bounds, queue_policy, schemas, tenants, unique


def is_checked(project: str) -> bool:
    """Whether `check` may find anything, as the registry was when it was read."""
    return schemas.are_registered() or tenants.is_limited(project)


def check(
    new: Sequence[NewJob], project: str, which: str = "The job", *, arguments: bool = True
) -> None:
    """Check the arguments and the sizes of jobs of one project.

    Args:
        which: the jobs, at the beginning of a message; `{type}` is replaced.
        arguments: also by the schema of their type; jobs may get `warnings` (`schemas.checked`).

    Raises:
        InvalidArguments: a job does not match the schema of its type, whose mode is `strict`.
        JobTooLarge: a job is larger than its tenant's may be.
    """
    if arguments:
        schemas.checked(new)
    limit = tenants.size_limit(project)
    if limit is not None:
        for job in new:
            limit.check(job, which.format(type=job.type))


def overridden(job: Job, override: Override) -> dict[str, Any]:
    """Return the columns that change as a stored job is changed (OJS dead letter §6.3).

    What it had was accepted when it was enqueued. What is new is checked as an enqueue would, and
    so is the whole job if its queue changes; see also `admit`.

    Raises:
        InvalidRequest: `meta` names another tenant, or the unique key is made of a field that the
            new arguments do not have.
        MetadataTooLarge: its meta exceeds 64 KB.
        InvalidArguments, JobTooLarge: see `check`.
        DuplicateJob: the job would have the unique key of another one.
    """
    columns = dict(override.columns)
    if override.meta:
        columns["meta"] = job.meta | override.meta
        refuse_other_tenant(job, columns["meta"])
        refuse_large_meta(columns["meta"])
        columns["needs"] = needs_of(columns["meta"])
    new = _changed(job, columns)
    is_read_anew = "args" in columns or new.queue != job.queue
    if is_read_anew or override.meta:
        schemas.refresh()
        check([new], job.project, arguments=is_read_anew)
    if is_read_anew:
        columns["attributes"] = new.attributes
    policy = unique.policy_after(job, new)
    if policy is not None:
        unique.claim(policy)
        columns["unique_key"] = policy.key
    return columns


def admit(job: Job, queue: str) -> list[UUID]:
    """Let a job that an operator puts in another queue in, by the rules for new jobs there.

    Must run in the transaction that moves it. Returns the jobs dropped to make room that have
    dependents or a workflow.

    Raises:
        QueueFull, QueueClosed, JobTypeNotAllowed: the queue does not accept the job.
    """
    if queue == job.queue:
        return []
    queue_policy.make([queue], queue_policy.default_policy())
    ended = bounds.admit([_changed(job, {"queue": queue})])
    _rename_rate_keys([job.pk], queue)
    return ended


def rename_keys(job_ids: Collection[UUID], queue: str) -> None:
    """Give jobs that are put in another queue the keys they have there: unique, and of rate limits.

    They are not compared with the jobs that are there: a job that was accepted is not lost.
    """
    _rename_rate_keys(job_ids, queue)
    columns = ("type", "queue", "args", "meta", "version_number", "attributes", "project")
    unique_jobs = Job.objects.filter(Among("pk", job_ids), unique_key__isnull=False)
    keys: dict[UUID | str, str] = {}
    for job in unique_jobs.only(*columns, "unique_key"):
        policy = unique.policy_after(job, _changed(job, {"queue": queue}))
        if policy is not None:
            keys[job.pk] = policy.key
    if keys:
        Job.objects.filter(Among("pk", keys)).update(unique_key=Each(keys, CharField()))


def _rename_rate_keys(job_ids: Collection[UUID], queue: str) -> None:
    """Let the limit of jobs that is that of their queue follow them; a fetch makes what is new."""
    limited = Job.objects.filter(Among("pk", job_ids), rate_key__gt="")
    keys: dict[UUID | str, str] = {}
    for job in limited.only("rate_key", "project", "attributes"):
        sent = (job.attributes or {}).get("rate_limit")
        key = rate_policy.key_moved(job.rate_key, sent, job.project, queue)
        if key != job.rate_key:
            keys[job.pk] = key
    if keys:
        Job.objects.filter(Among("pk", keys)).update(rate_key=Each(keys, CharField()))


def _changed(job: Job, columns: dict[str, Any]) -> NewJob:
    attributes = dict(job.attributes or {})
    queue = columns.get("queue", job.queue)
    if "args" in columns or queue != job.queue:
        # They are about the old arguments, by the mode of the old queue.
        attributes.pop("warnings", None)
    if "args" in columns:
        # About the old arguments, too.
        sent = attributes.get("unique")
        if sent:
            attributes["unique"] = {name: sent[name] for name in sent if name != "digest"}
    return NewJob(
        type=job.type,
        args=columns.get("args", job.args),
        id=job.pk,
        queue=queue,
        meta=columns.get("meta", job.meta),
        version_number=job.version_number,
        attributes=attributes,
        project=job.project,
    )
