"""Tenants: their ids, and the requests about their limits (OJS multi-tenancy §5, §8).

A tenant is a project: its jobs are those of the project with its name.
"""

from __future__ import annotations

import re
from typing import Any

from ..conf import ojs_settings
from ..errors import InvalidRequest, TenantRequired
from . import rate_policy
from .durations import format_duration
from .fields import Document, inside, refuse
from .members import Choice, Integer, Members, Number, Object, Text, words
from .queue_config import LEAST_WEIGHT, MOST_WEIGHT

MEMBER = "tenant_id"
"""The member of `meta` with a job's tenant."""
HEADER = "X-OJS-Tenant"
META_HEADER = "HTTP_X_OJS_TENANT"
"""The WSGI name of that header."""
PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")
LONGEST = 100
MOST = 2**31 - 1
MOST_PRIORITY = 100


def default_tenant() -> str:
    """The tenant of jobs without one, where tenants take turns or this one has limits (§15.3)."""
    return ojs_settings.DEFAULT_TENANT


def check_id(value: Any, place: str) -> str:
    """
    Raises:
        InvalidRequest: this cannot be a tenant's id (§5.2).
    """
    if type(value) is str and len(value) <= LONGEST and PATTERN.fullmatch(value):
        return value
    raise refuse(
        place,
        f"'{place}' must be a text of at most {LONGEST} characters that matches "
        f"{PATTERN.pattern}, not {value!r:.120}.",
        validation="pattern",
    )


def check_name(value: str, place: str = "tenant_id") -> str:
    """The same, or the default tenant."""
    return value if value == default_tenant() else check_id(value, place)


class EnqueueRate(rate_policy.Pace, closed=True):
    pass


class TenantLimits(Members, closed=True, about="`null` removes a limit."):
    max_concurrency = Integer("Jobs that may be active at once.", most=MOST, nullable=True)
    max_enqueue_rate = Object("Jobs that may be enqueued.", of=EnqueueRate, nullable=True)
    max_queue_depth = Integer("Jobs that may wait.", most=MOST, nullable=True)
    max_scheduled = Integer("Jobs that may be scheduled.", most=MOST, nullable=True)
    max_job_size = Integer(
        "Bytes of JSON that the arguments and `meta` of a job may have.", most=MOST, nullable=True
    )


class ChangeTenantLimits(TenantLimits):
    reason = Text("Why, for the audit.", longest=2000).default("")


class ChangeTenant(Members, closed=True):
    tenant_id = Text("The same as in the path.", longest=LONGEST)
    limits = Object(of=TenantLimits)
    fairness_weight = Number("Its share of the turns.", least=LEAST_WEIGHT, most=MOST_WEIGHT)
    priority_boost = Integer(
        "Added to the priority of its jobs.", least=-2 * MOST_PRIORITY, most=2 * MOST_PRIORITY
    )
    quota = Choice(
        words("hard", "soft"),
        "`soft`: jobs beyond its limits of enqueues are recorded, not refused.",
    )
    reason = Text("Why, for the audit.", longest=2000).default("")


LIMITS = tuple(TenantLimits.members)


def read_limits(document: Document) -> dict[str, Any]:
    """Return the limits that a request changes, by the names of their columns; null removes one.

    Raises:
        InvalidRequest: there is no such limit, or its value is invalid.
    """
    changes: dict[str, Any] = {}
    for name, value in document.items():
        if name not in LIMITS:
            known = ", ".join(LIMITS)
            raise refuse(name, f"There is no limit '{name}'; there are {known}.")
        member: Any = TenantLimits.members[name]
        changes[name] = None if value is None else member.check(value, name)
    pace = changes.get("max_enqueue_rate")
    if pace is not None:
        with inside("max_enqueue_rate"):
            EnqueueRate.refuse_others(pace)
        period = EnqueueRate.period.under(pace, "max_enqueue_rate")
        limit = EnqueueRate.limit.under(pace, "max_enqueue_rate")
        changes["max_enqueue_rate"] = {"limit": limit, "period": format_duration(period)}
    return changes


def read_tenant(document: Document, name: str) -> dict[str, Any]:
    """Return what a request changes about a tenant, by the names of its columns.

    Raises:
        InvalidRequest: there is no such member, a value is invalid, or another tenant is named.
    """
    ChangeTenant.refuse_others(document)
    named = ChangeTenant.tenant_id.read(document)
    if named not in (None, name):
        raise refuse("tenant_id", f"The path names the tenant '{name}', not {named!r}.")
    with inside("limits"):
        changes = read_limits(ChangeTenant.limits.read(document) or {})
    for member in ("fairness_weight", "priority_boost"):
        value = getattr(ChangeTenant, member).read(document)
        if value is not None:
            changes[member] = value
    quota = ChangeTenant.quota.read(document)
    if quota is not None:
        changes["is_soft"] = quota == "soft"
    return changes


def tenant_of(meta: dict[str, Any], project: str, *, required: bool) -> str:
    """Return the tenant of a new job: the project of its key, or `meta.tenant_id` (§5).

    Raises:
        InvalidRequest: both are given, and differ; or the id is not valid.
        TenantRequired: there is neither, and one is required.
    """
    named = meta.get(MEMBER)
    place = f"meta.{MEMBER}"
    if named is None:
        if required and not project:
            raise TenantRequired(
                f"The '{place}' field is required: every job belongs to a tenant.", field=place
            )
        return project
    if project and named != project:
        raise other_tenant(named, project)
    return project or check_id(named, place)


def other_tenant(named: Any, project: str) -> InvalidRequest:
    whose = f"to the tenant '{project}'" if project else "to no tenant"
    return refuse(
        f"meta.{MEMBER}",
        f"The job belongs {whose}, not to {named!r:.120}.",
        validation="tenant",
    )
