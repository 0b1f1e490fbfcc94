"""Projects: a key of a project can access only the jobs and workers of that project.

A job's project is that of the key it was enqueued with, and never changes. Checking first and
acting afterwards is therefore no race: a job of another project stays one. No project (the empty
text), on either side, is the common case and costs nothing: a job without a project is seen only
by keys without one, and such a key sees everything.

A project is a tenant of OJS multi-tenancy. A key without a project may name one, in the header
`X-OJS-Tenant` for the whole request, or in `meta.tenant_id` for a job; a key of a project may name
only that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models import Q

from ..conf import ojs_settings
from ..errors import InvalidRequest, JobNotFound
from ..models import Job
from ..spec import rate_policy, unique_policy
from ..spec.batches import shared_targets
from ..spec.fields import refuse
from ..spec.tenants import MEMBER, other_tenant, tenant_of
from ..spec.validation import NewJob
from ..spec.worker_ids import qualified, spellings


def assign_project(
    new: Sequence[NewJob], project: str, *, lenient: bool = False
) -> Sequence[NewJob]:
    """Assign new jobs to `project`, or to the tenants they name, before they are stored.

    They are unique within it, and so are the keys of their rate limits: otherwise one project could
    find, cancel or stop another's jobs. Their `meta.tenant_id` says which it is (OJS multi-tenancy
    §5).

    Args:
        project: that of the request; empty: each job may name its own.
        lenient: these jobs were accepted earlier: do not refuse them.

    Raises:
        InvalidRequest: a job names another tenant than `project`, or something that is none, or
            has a rate limit for all tenants, which could be used to stop their jobs.
        TenantRequired: a job has none, and one is required.
    """
    mode = ojs_settings.MULTI_TENANCY
    for job in shared_targets(new):
        tenant = project
        if mode != "off":
            try:
                tenant = tenant_of(job.meta, project, required=mode == "required")
            except InvalidRequest:
                if not lenient:
                    raise
        if not tenant:
            continue
        job.project = tenant
        if mode != "off" and MEMBER not in job.meta:
            job.meta = {**job.meta, MEMBER: tenant}
        if job.unique is not None:
            key = unique_policy.key_of_project(job.unique.key, tenant)
            job.unique = replace(job.unique, key=key)
        if job.rate_limit is not None:
            if job.rate_limit.get("scope") == "global" and not lenient:
                raise refuse(
                    "rate_limit.scope",
                    "The rate limit of a tenant's job is the tenant's own. To limit the jobs of "
                    "all tenants, limit their queue.",
                )
            key = rate_policy.key_of_project(job.rate_limit["key"], tenant)
            job.rate_limit = {**job.rate_limit, "key": key}
    return new


def refuse_other_tenant(job: Job, meta: dict[str, Any]) -> None:
    """Refuse a change of a stored job's `meta` that names another tenant: its own never changes.

    Raises:
        InvalidRequest: `meta.tenant_id` would no longer say which it is.
    """
    named = meta.get(MEMBER)
    if ojs_settings.MULTI_TENANCY != "off" and named not in (job.meta.get(MEMBER), job.project):
        raise other_tenant(named, job.project)


def scope_to(rows: Any, project: str) -> Any:
    """Narrow the queryset `rows` to what `project` may see."""
    # Repeats the condition of the partial indexes; a parameter could be empty.
    return rows.filter(project=project).exclude(project="") if project else rows


def of_worker(column: str, pattern: str, project: str) -> Q:
    """Rows whose `column` names the worker that a key of `project` calls by this name.

    Only for rows of the project. A `*` at the end matches any text.
    """
    if not pattern.endswith("*"):
        return Q(**{f"{column}__in": spellings(pattern, project)})
    beginning, lookup = pattern[:-1], f"{column}__startswith"
    if not project:
        return Q(**{lookup: beginning})
    prefix = qualified("", project)
    plain = Q(**{lookup: beginning}) & ~Q(**{lookup: prefix})
    return plain | Q(**{lookup: prefix + beginning})


def outside_project(job_ids: Iterable[UUID], project: str) -> set[UUID]:
    """Return those of `job_ids` that belong to other projects or do not exist."""
    if not project:
        return set()
    asked = set(job_ids)
    return asked.difference(
        scope_to(Job.objects.filter(pk__in=asked), project).values_list("pk", flat=True)
    )


def find(job_id: UUID, project: str) -> Job:
    """Return a job of `project`.

    Raises:
        JobNotFound: there is no such job, or it is another project's.
    """
    job: Job | None = scope_to(Job.objects.filter(pk=job_id), project).first()
    if job is None:
        raise JobNotFound(job_id)
    return job


def require(job_id: UUID, project: str) -> None:
    """Check that a job belongs to `project`.

    Raises:
        JobNotFound: there is no such job, or it is another project's.
    """
    if outside_project([job_id], project):
        raise JobNotFound(job_id)
