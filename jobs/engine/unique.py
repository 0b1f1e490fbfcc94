"""Unique jobs: how an enqueue treats duplicates (OJS unique jobs §5 to §8).

Strongly consistent: an enqueue under a key holds the key's lock until its transaction ends. The
query for duplicates is a separate statement after the lock is held, so it sees all that other
transactions have committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from ..errors import DuplicateJob, InvalidRequest
from ..models import Job
from ..spec.lifecycle import TERMINAL, State
from ..spec.unique_policy import UniquePolicy, key_of_project, read_policy
from ..spec.validation import NewJob
from ..store.stores import store
from .ends import cancel_unfinished

KEEPING = frozenset({"reject", "ignore"})
"""Policies that leave the stored job alone; with every other policy it gives way."""


class Conflicts:
    """Decides, job by job, which of a batch are stored and which jobs give way to them."""

    def __init__(self, new: Sequence[NewJob]) -> None:
        self.new = new
        self.kept: list[NewJob] = []
        self.ended: list[UUID] = []
        """Jobs that gave way and have dependents or a workflow."""
        self.replaced: dict[str, list[NewJob]] = {}
        """Jobs of this batch that gave way to later ones, by the reason to record."""
        self.earlier: dict[str, dict[State, list[NewJob]]] = {}
        """The unique jobs of this batch that will be stored, by key and state."""

    def settle(self) -> list[NewJob]:
        """Lock the keys and apply the policies; return the jobs to store.

        Must run in the transaction that stores them.

        Raises:
            DuplicateJob: a policy is `reject` (§5.1).
        """
        lock([job.unique for job in self.new if job.unique])
        for job in self.new:
            if job.unique is None or self._admit(job, job.unique):
                self.kept.append(job)
                if job.unique is not None:
                    states = self.earlier.setdefault(job.unique.key, {})
                    states.setdefault(job.state, []).append(job)
        return self.kept

    def _admit(self, job: NewJob, policy: UniquePolicy) -> bool:
        stored = _stored(policy)
        batched = [
            other
            for state in policy.states
            for other in self.earlier.get(policy.key, {}).get(state, ())
        ]
        if not stored and not batched:
            return True
        newest: Any = batched[-1] if batched else stored[0]
        # A step of a workflow that was not stored would be waited for in vain.
        if policy.on_conflict == "reject" or (
            policy.on_conflict == "ignore" and (job.workflow_id or job.followed)
        ):
            raise self._refusal(job, policy, batched, stored)
        if policy.on_conflict == "ignore":
            job.existing = newest
            job.id, job.state = newest.id, State(newest.state)
            return False
        if policy.on_conflict == "replace_except_schedule":
            _keep_schedule(job, [*batched, *stored])
        self._replace(job, policy, batched, stored)
        return True

    def _replace(
        self, job: NewJob, policy: UniquePolicy, batched: list[NewJob], stored: list[Any]
    ) -> None:
        """Cancel the stored duplicates (§5.2); finished jobs stay as they are."""
        waiting = [other.id for other in stored if other.state not in TERMINAL]
        self._cancel(waiting, reason=f"replaced by {job.id}")
        # Jobs of this batch are stored first, so that they appear in the record of events.
        self.replaced.setdefault(f"replaced by {job.id}", []).extend(batched)
        for other in batched:
            self.earlier[policy.key][other.state].remove(other)

    def _refusal(
        self, job: NewJob, policy: UniquePolicy, batched: list[NewJob], stored: list[Any]
    ) -> DuplicateJob:
        if stored:
            return _duplicate(stored[0], policy)
        # The other one is rolled back with this one, so its id would name no job.
        first, index = (
            place for place, new in enumerate(self.new) if new is job or new is batched[-1]
        )
        return DuplicateJob.within(first, index, **_keys(policy))

    def cancel_replaced(self) -> None:
        """Cancel jobs of the batch that a later one of the batch replaced."""
        for reason, jobs in self.replaced.items():
            self._cancel([job.id for job in jobs], reason=reason)
        replaced = {job.id: job for jobs in self.replaced.values() for job in jobs}
        for row in Job.objects.filter(pk__in=replaced).only("state", "finished_at"):
            replaced[row.pk].state = State(row.state)
            replaced[row.pk].finished_at = row.finished_at

    def _cancel(self, job_ids: Collection[UUID], *, reason: str) -> None:
        _, followed = cancel_unfinished(job_ids, reason=reason)
        self.ended += followed


def lock(policies: Sequence[UniquePolicy]) -> None:
    """Lock the jobs that give way, in the order of ids, and then the keys.

    Jobs before keys: whatever ends a job of a workflow holds it when the next step needs its key.
    """
    replacing = [policy for policy in policies if policy.on_conflict not in KEEPING]
    live = {state for policy in replacing for state in policy.states} - TERMINAL
    if live:
        keys = {policy.key for policy in replacing}
        jobs = Job.objects.filter(unique_key__in=keys, state__in=sorted(live))
        list(jobs.order_by("pk").select_for_update().values_list("pk", flat=True))
    # 64 bits of the key; a collision only makes two keys wait for each other.
    store().lock_keys({int(policy.key[:16], 16) - 2**63 for policy in policies})


def claim(policy: UniquePolicy) -> None:
    """Lock a key that a stored job gets, until the transaction ends.

    Raises:
        DuplicateJob: another job has it, and counts as a duplicate by the policy.
    """
    policy = replace(policy, on_conflict="reject")
    lock([policy])
    if existing := _stored(policy):
        raise _duplicate(existing[0], policy)


def policy_after(job: Job, new: NewJob) -> UniquePolicy | None:
    """Return the policy of a stored job with the key that its new content has.

    None if its key stays: it has none, or one that was not computed from what has changed.

    Args:
        new: the job with its new content.

    Raises:
        InvalidRequest: the key is made of a field that the new arguments do not have.
    """
    if job.unique_key is None:
        return None
    known = _policy(job)
    for project in ("", job.project):
        if known and key_of_project(known.key, project) == job.unique_key:
            policy = _policy_of(new)
            key = key_of_project(policy.key, project)
            return None if key == job.unique_key else replace(policy, key=key)
    return None


def _policy(job: Job) -> UniquePolicy | None:
    # Not every key is made this way: that of a CloudEvent stays as it is.
    try:
        return _policy_of(job)
    except InvalidRequest:
        return None


def _policy_of(job: Job | NewJob) -> UniquePolicy:
    return read_policy(
        (job.attributes or {}).get("unique") or {},
        type=job.type,
        queue=job.queue,
        args=job.args,
        meta=job.meta,
        version=job.version_number,
    )


def _stored(policy: UniquePolicy) -> list[Job]:
    """Return the jobs that the policy considers duplicates, newest first (§7.4)."""
    jobs = Job.objects.filter(unique_key=policy.key, state__in=policy.states)
    if policy.period is not None:
        # Counted from the creation of the existing job (§7.2).
        jobs = jobs.filter(created_at__gt=Now() - policy.period)
    jobs = jobs.order_by("-created_at", "-pk")
    live = [state for state in policy.states if state not in TERMINAL]
    if policy.on_conflict in KEEPING or not live:
        return list(jobs[:1])
    found = list(jobs.filter(state__in=live).order_by("pk").select_for_update())
    newest_first = sorted(found, key=lambda job: (job.created_at, job.pk), reverse=True)
    return newest_first or list(jobs[:1])


def _keep_schedule(job: NewJob, others: Sequence[Any]) -> None:
    """Pass the time of a replaced scheduled job on to the new one (§5.3)."""
    planned = next((other for other in others if other.state == State.SCHEDULED), None)
    if planned is None:
        return
    job.scheduled_at = planned.scheduled_at
    job.state = State.SCHEDULED
    job.attributes.pop("scheduled_at", None)
    sent = (planned.attributes or {}).get("scheduled_at")
    if sent is not None:
        job.attributes["scheduled_at"] = sent


def _duplicate(existing: Any, policy: UniquePolicy) -> DuplicateJob:
    return DuplicateJob(
        "A job with the same unique key already exists.",
        existing_job_id=str(existing.id),
        existing_job_state=str(existing.state),
        **_keys(policy),
    )


def _keys(policy: UniquePolicy) -> dict[str, str]:
    return {"unique_key": policy.key, "uniqueness_key": policy.key}
