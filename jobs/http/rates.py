"""Headers that tell a producer how much more it may enqueue, over every HTTP binding.

`X-OJS-Queue-*` warns of a queue that is nearly full (OJS backpressure §7.3). `X-RateLimit-*` is the
limit of the tenant, or else the one rate limit that all its jobs have (OJS HTTP §18.1, rate
limiting §10.4). Answers to which none applies have none, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from .. import engine
from ..spec.batches import representatives
from ..spec.tenants import default_tenant
from ..spec.validation import NewJob
from .verbs import show_rate


def show_limits_of(response: Any, jobs: Sequence[NewJob]) -> None:
    """Add the headers to the answer to an enqueue of these jobs."""
    show_pressure(response, jobs)
    _show_rate_of(response, jobs)


def show_pressure(response: Any, jobs: Iterable[NewJob]) -> None:
    """Add the headers of the fullest queue that is nearly full."""
    pressed = [job.pressure for job in jobs if job.pressure is not None]
    if pressed:
        depth, bound = max(pressed, key=lambda pair: pair[0] / pair[1])
        response["X-OJS-Queue-Depth"] = str(depth)
        response["X-OJS-Queue-Bound"] = str(bound)
        response["X-OJS-Queue-Pressure"] = f"{depth / bound:.2f}"


def _show_rate_of(response: Any, jobs: Sequence[NewJob]) -> None:
    distinct = list(representatives(jobs))
    if show_rate_of_tenants(response, {job.project for job in distinct}):
        return
    limited = [job for job in distinct if (job.rate_limit or {}).get("rate")]
    if len({job.rate_key for job in limited}) == 1:
        rate = (limited[-1].rate_limit or {})["rate"]
        show_rate(response, rate["limit"], *engine.limits.remaining(limited[-1].rate_key, rate))


def show_rate_of_tenants(response: Any, projects: Collection[str]) -> bool:
    """Add the headers if these are one project, whose enqueues are limited; return whether."""
    if len(projects) != 1:
        return False
    (project,) = projects
    found = engine.tenants.remaining(project or default_tenant())
    if found is not None:
        show_rate(response, *found)
    return found is not None
