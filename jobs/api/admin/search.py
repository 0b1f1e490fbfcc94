"""Filters and order of the Admin API's job lists (§7.1)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db.models import F

from ... import engine
from ...errors import InvalidRequest
from ...http.parameters import JobSearch
from ...spec.fields import refuse
from ...spec.lifecycle import State
from ...spec.members import Moment
from ...spec.worker_ids import spellings
from ...store import clock

SPACE_FOR_PLUS = re.compile(r" (?=\d\d:\d\d$)")
"""A `+` in `…T00:00:00+01:00` that the client did not percent-encode becomes this."""
MOMENT = Moment()
SORTS = {
    # Ids are UUIDv7: ordered by creation, and indexed.
    "created_at": "pk",
    "scheduled_at": "scheduled_at",
    "priority": "priority",
    "discarded_at": "finished_at",
}


def choice(parameters: Any, name: str, allowed: Any, default: str) -> str:
    """
    Raises:
        InvalidRequest: the parameter is not one of `allowed`.
    """
    value: str = parameters.get(name) or default
    if value not in allowed:
        raise InvalidRequest(
            f"The '{name}' parameter must be one of {', '.join(allowed)}, not {value!r}.",
            field=name,
        )
    return value


def filtered(jobs: Any, parameters: Any, project: str, *, time: str = "created_at") -> Any:
    """Narrow `jobs` by `queue`, `state`, `type`, `since`, `until`, `worker_id`, `error_type`.

    Args:
        project: the project of the key that reads them; empty means all projects.
        time: the column that `since` and `until` filter by.

    Raises:
        InvalidRequest: a parameter is invalid.
    """
    if parameters.get("queue"):
        jobs = jobs.filter(queue=parameters["queue"])
    if parameters.get("worker_id"):
        jobs = jobs.filter(reserved_by__in=spellings(parameters["worker_id"], project))
    states = [state for state in (parameters.get("state") or "").split(",") if state]
    for state in states:
        choice({"state": state}, "state", State.values, "")
    if states:
        jobs = jobs.filter(state__in=states)
    if parameters.get("type"):
        jobs = of_type(jobs, parameters["type"])
    now = clock.now()
    for name, lookup in (("since", f"{time}__gte"), ("until", f"{time}__lt")):
        if (moment := moment_of(parameters, name, now)) is not None:
            jobs = jobs.filter(**{lookup: moment})
    if parameters.get("error_type"):
        jobs = engine.failed_with(jobs, parameters["error_type"])
    return jobs


def moment_of(
    parameters: Any, name: str, now: datetime, *, kind: Moment = MOMENT
) -> datetime | None:
    """
    Raises:
        InvalidRequest: the parameter is not a timestamp.
    """
    text = parameters.get(name)
    return kind.check(SPACE_FOR_PLUS.sub("+", text), name, now) if text else None


def period_of(
    parameters: Any, begin: str, end: str, length: timedelta
) -> tuple[datetime, datetime]:
    """Return the period that two parameters name: by default the last `length` before its end,
    which is now by default.

    Raises:
        InvalidRequest: one of them is not a timestamp, or there is no time so long before the end.
    """
    now = clock.now()
    until = moment_of(parameters, end, now) or now
    since = moment_of(parameters, begin, now)
    try:
        return since or until - length, until
    except OverflowError:
        raise refuse(
            end,
            f"The period that ends at '{end}' would begin before the year 1.",
            validation="range",
        ) from None


def of_type(jobs: Any, wanted: str) -> Any:
    """Jobs of this type; `email.*` matches a prefix."""
    if wanted.endswith("*"):
        return jobs.filter(type__startswith=wanted[:-1])
    return jobs.filter(type=wanted)


def ordered(jobs: Any, parameters: Any) -> tuple[Any, Literal["", "up", "down"]]:
    """Order `jobs` as requested; also return the direction of the order by id, if it is one."""
    column = SORTS[JobSearch.sort.read(parameters)]
    down = JobSearch.order.read(parameters) == "desc"
    pk = "-pk" if down else "pk"
    if column == "pk":
        return jobs.order_by(pk), "down" if down else "up"
    by = F(column).desc(nulls_last=True) if down else F(column).asc(nulls_last=True)
    return jobs.order_by(by, pk), ""
