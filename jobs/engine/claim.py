"""FETCH: reserve available jobs, each for one worker only (OJS worker protocol §6).

`attempt` is the number of the current attempt. FETCH increments it unless a recovery has already
counted the next attempt: an expired or orphaned attempt *n* leaves *n* + 1 marked as counted. So
one crash costs exactly one attempt, the counter grows at expiry as §5.5 requires and at FETCH as
core §6.3 requires, and `max_attempts` is never exceeded.

Scheduled and retryable jobs that are due are claimed too, as if the timer had just promoted them:
a fetch does not depend on the reaper.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypedDict, Unpack
from uuid import UUID

from ..models import Job
from ..signals import jobs_claimed, send_on_commit
from ..spec.lifecycle import State
from ..spec.reports import Completion
from ..store.claimed import ClaimedJob
from ..store.contract import OPEN, Claimed, ClaimRequest, Gate, Versions
from ..store.database import atomic
from ..store.stores import store
from . import held_back
from .limited_claim import claim_within_limits
from .outcomes import Outcome
from .reservations import default_period
from .settle import Settlement, complete
from .workflow_progress import mark_started

ANY_VERSION: Versions = {}


class ClaimOptions(TypedDict, total=False):
    worker_id: str
    count: int
    """Most jobs to claim; defaults to one."""
    types: Sequence[str] | None
    """Job types the worker can run; None, the default, means any."""
    able: Sequence[str]
    """The worker's abilities; jobs that need anything else are left to other workers."""
    versions: Versions
    """Bounds of the versions it accepts, by job type; any version of a type not named."""
    visibility_timeout: timedelta | None
    """For jobs that set none themselves; None, the default, means the one in the settings."""
    project: str
    """Only jobs of this project; empty, the default, means any project."""
    pool: str | None
    """The worker pool to claim through; None, the default, means the one in the worker's labels."""
    gate: Gate
    """What else must be checked of the worker, which then supplies `able` and `versions`."""


def claim(queues: Sequence[str], **options: Unpack[ClaimOptions]) -> list[ClaimedJob]:
    """Reserve jobs, queues in the order given, priority then age inside each (§6.3).

    Paused queues give nothing. Never blocks; an empty list is a normal answer (§6.5).
    """
    request = claim_request(queues, **options)
    return [] if request is None else _jobs(request, store().claim(request))


def claim_each(
    asked: Sequence[tuple[Sequence[str], ClaimOptions]],
) -> list[list[ClaimedJob] | Exception]:
    """`claim` for fetches that arrived at the same time, together where possible.

    Args:
        asked: the queues and the options of each.

    Returns:
        The jobs of each, or why its fetch failed although others have their jobs.
    """
    requests = [claim_request(queues, **options) for queues, options in asked]
    claimed = iter(store().claim_each([one for one in requests if one is not None]))
    found: list[list[ClaimedJob] | Exception] = []
    for request in requests:
        try:
            found.append([] if request is None else _jobs(request, next(claimed)))
        except Exception as problem:
            found.append(problem)
    return found


def claim_chosen(job_ids: Collection[UUID], **options: Unpack[ClaimOptions]) -> list[ClaimedJob]:
    """Reserve those of these jobs that are available, regardless of their queues' limits."""
    request = claim_request([], **options)
    if request is None:
        return []
    available = Job.objects.filter(pk__in=job_ids, state=State.AVAILABLE)
    with atomic():
        ids = list(available.order_by("pk").select_for_update().values_list("pk", flat=True))
        return _jobs(request, Claimed(store().claim_chosen(ids, request)))


def exchange(
    completions: Sequence[Completion], queues: Sequence[str], **options: Unpack[ClaimOptions]
) -> tuple[list[Outcome], list[ClaimedJob]]:
    """`complete`, then `claim`: a busy worker's whole turn, in one round trip where possible.

    Jobs with dependents are completed, and jobs behind limits claimed, afterwards, in separate
    transactions, as usual.
    """
    request = claim_request(queues, **options)
    if request is None or not completions:
        return complete(completions), claim(queues, **options)
    settlement = Settlement(completions)
    completed, claimed = store().complete_and_claim(settlement.first, request)
    return settlement.outcomes(completed), _jobs(request, claimed)


def claim_request(queues: Sequence[str], **options: Unpack[ClaimOptions]) -> ClaimRequest | None:
    """Build the request for a claim; None where nothing can be claimed."""
    count, types = options.get("count", 1), options.get("types")
    if count < 1 or types == []:
        return None
    return ClaimRequest(
        list(dict.fromkeys(queues)),
        options.get("worker_id", ""),
        count,
        types,
        default_period(options.get("visibility_timeout")),
        options.get("able", ()),
        options.get("versions", ANY_VERSION),
        options.get("project", ""),
        gate=options.get("gate", OPEN),
        pool=options.get("pool"),
    )


def _jobs(request: ClaimRequest, claimed: Claimed) -> list[ClaimedJob]:
    jobs = claimed.jobs
    if claimed.is_limited:
        request = replace(request, pool=claimed.pool)
        jobs = claim_within_limits(request)
        held_back.look_again(request, jobs)
    begun = {job.workflow_id for job in jobs if job.workflow_id is not None}
    if begun:
        mark_started(begun)
    if jobs and jobs_claimed.has_listeners():
        send_on_commit(jobs_claimed, Job, jobs=jobs, worker_id=request.worker_id)
    return jobs
