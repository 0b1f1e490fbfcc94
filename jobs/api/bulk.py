"""Changes many jobs in one request: enqueue, cancel, retry, delete (OJS bulk operations)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
from django.db import transaction
from rest_framework.response import Response

from .. import engine
from ..access import sees_all
from ..access.audit import of_caller
from ..access.projects import assign_project
from ..conf import ojs_settings
from ..errors import (
    BatchTooLarge,
    Conflict,
    DuplicateJob,
    InvalidArguments,
    JobTooLarge,
    JobTypeNotAllowed,
    OJSError,
    QueueClosed,
    QueueFull,
    TenantLimitExceeded,
)
from ..http.base import OJSViewSet
from ..http.errors import error_document
from ..http.rates import show_pressure, show_rate_of_tenants
from ..http.request import Request
from ..models import BulkRequest
from ..record.events import bulk_event, record
from ..spec.bulk_requests import LONGEST_KEY, Bulk, BulkChange, BulkEnqueue
from ..spec.fields import refuse
from ..spec.validation import NewJob, new_job
from ..store import clock
from ..store.database import alias, atomic, connection
from .selection import Selection
from .verbs import enqueued, trace

KEPT = timedelta(hours=24)
ONE_BY_ONE = (
    DuplicateJob,
    InvalidArguments,
    QueueFull,
    QueueClosed,
    JobTypeNotAllowed,
    TenantLimitExceeded,
    JobTooLarge,
)
"""Refusals that concern individual jobs of a batch."""


class BulkViewSet(OJSViewSet):
    """`/ojs/v1/jobs/bulk`"""

    resource = "bulk"

    def enqueue(self, request: Request) -> Response:
        """Enqueue many jobs: `atomic`, or as many as possible (§5)."""
        body = self.read(required=True)
        documents = BulkEnqueue.jobs.read(body)
        if len(documents) > ojs_settings.MAX_BULK:
            raise BatchTooLarge(len(documents), ojs_settings.MAX_BULK)
        whole = Bulk.atomicity.read(body) == "atomic"
        projects: set[str] = set()
        stored: list[NewJob] = []
        response = self._answered(
            "enqueue", body, lambda: self._enqueue(documents, whole, projects, stored)
        )
        show_pressure(response, stored)
        show_rate_of_tenants(response, projects)
        return response

    def _enqueue(
        self, documents: list[Any], whole: bool, projects: set[str], stored: list[NewJob]
    ) -> tuple[int, dict[str, Any]]:
        """
        Args:
            projects: gets those of the jobs.
            stored: gets the jobs that were enqueued.
        """
        now = clock.now()
        done: Stored = {}
        for index, document in enumerate(documents):
            try:
                (done[index],) = assign_project([new_job(document, now)], self.caller.project)
            except OJSError as refusal:
                done[index] = refusal
        valid = {index: job for index, job in done.items() if isinstance(job, NewJob)}
        projects.update(job.project for job in valid.values())
        trace(self.request.META, list(valid.values()))
        if not whole:
            done |= _store(valid)
        elif len(valid) == len(documents):
            done |= _store_all(valid)
        full = [result for result in done.values() if isinstance(result, QueueFull)]
        for last in {each.details["queue"]: each for each in full}.values():
            # Recorded here, because the batch that was refused has been rolled back.
            engine.bounds.record_refusal(last)
        beyond = [each for each in done.values() if isinstance(each, TenantLimitExceeded)]
        for refused in {each.details["tenant_id"]: each for each in beyond}.values():
            engine.tenants.record_refusal(refused)
        failed = sum(isinstance(result, OJSError) for result in done.values())
        if whole and failed:
            failed = len(documents)
        else:
            stored += [result for result in done.values() if isinstance(result, NewJob)]
        items = [self._item(index, done[index], undone=whole and bool(failed)) for index in done]
        total = len(documents)
        report = {"total": total, "succeeded": total - failed, "failed": failed}
        record([bulk_event("enqueue", **report, atomicity="atomic" if whole else "partial")])
        status = 201 if not failed else 422 if failed == total else 207
        return status, report | {"items": items}

    def _item(self, index: int, result: NewJob | OJSError, *, undone: bool) -> dict[str, Any]:
        if isinstance(result, OJSError):
            error = error_document(result, self.request_id, retryable=result.retryable)
            return {"index": index, "status": "failed", "error": error}
        if undone:
            problem = Conflict("Not enqueued: another job of the atomic batch failed.")
            return self._item(index, problem, undone=False)
        status = "created" if result.existing is None else "duplicate"
        return {"index": index, "status": status, "job": enqueued(result)}

    def cancel(self, request: Request) -> Response:
        """Cancel waiting jobs, by ids or by a filter (§6)."""
        return self._change("cancel")

    def retry(self, request: Request) -> Response:
        """Retry discarded and retryable jobs (§7)."""
        return self._change("retry")

    def delete_finished(self, request: Request) -> Response:
        """Delete finished jobs permanently (§8)."""
        return self._change("delete")

    def _change(self, operation: str) -> Response:
        body = self.read(BulkChange, required=True)
        actor = of_caller(self.caller, self.request)
        selection = Selection.read(
            body, operation, actor, self.caller.project, sees_all=sees_all(self.caller)
        )
        if BulkChange.dry_run.read(body):
            return Response(selection.preview())
        whole = Bulk.atomicity.read(body) == "atomic"
        return self._answered(operation, body, lambda: selection.carry_out(whole))

    def _answered(
        self, operation: str, body: dict[str, Any], act: Callable[[], tuple[int, dict[str, Any]]]
    ) -> Response:
        """Answer; repeat the earlier response to a request with the same key (§10)."""
        header = self.request.META.get("HTTP_IDEMPOTENCY_KEY")
        given = header or Bulk.idempotency_key.read(body)
        if given and len(given) > LONGEST_KEY:
            raise refuse("Idempotency-Key", f"The key may have at most {LONGEST_KEY} characters.")
        if given:
            # Keys of different projects are independent.
            given = f"{self.caller.project}\x00{given}" if self.caller.project else given
            asked = {name: value for name, value in body.items() if name != "idempotency_key"}
            status, document = once(operation, given, asked, act)
        else:
            status, document = act()
        response = Response(document, status=status)
        size = document.get("total", document.get("total_matched", 0))
        response["X-OJS-Batch-Size"] = str(size)
        return response


Stored = dict[int, NewJob | OJSError]


def _store(jobs: dict[int, NewJob], *, locked: bool = False) -> Stored:
    """Enqueue as many as possible in one batch; if a batch is refused, try its halves (§5.3).

    Args:
        locked: the transaction holds what the jobs need.
    """
    if not jobs:
        return {}
    # A refused attempt modifies unique jobs.
    fresh = {index: replace(job, attributes=dict(job.attributes)) for index, job in jobs.items()}
    try:
        with atomic():
            engine.enqueue(list(fresh.values()))
    except ONE_BY_ONE as refusal:
        if len(jobs) == 1:
            return {next(iter(jobs)): refusal}
        if not locked and connection().in_atomic_block:
            # The halves keep their locks, and those of both must be in one order.
            engine.lock_for(list(jobs.values()))
        indexes = list(jobs)
        middle = len(indexes) // 2
        halves = (indexes[:middle], indexes[middle:])
        found = [_store({index: jobs[index] for index in half}, locked=True) for half in halves]
        return found[0] | found[1]
    return dict(fresh)


def _store_all(jobs: dict[int, NewJob]) -> Stored:
    """Enqueue all of them, or none and report which were refused (§5.3)."""
    with atomic():
        stored = _store(jobs)
        if any(isinstance(result, OJSError) for result in stored.values()):
            transaction.set_rollback(True, using=alias())
            _name_places(stored)
    return stored


def _name_places(stored: Stored) -> None:
    """Of jobs that are equal to others of the batch, say so: the others were not stored either."""
    places = {
        str(result.id): index
        for index, result in stored.items()
        if isinstance(result, NewJob) and result.existing is None
    }
    for index, result in stored.items():
        if isinstance(result, DuplicateJob):
            details = dict(result.details)
            first = places.get(details.pop("existing_job_id", ""))
            if first is not None:
                details.pop("existing_job_state", None)
                stored[index] = DuplicateJob.within(first, index, **details)


def once(
    operation: str, key: str, asked: Any, act: Callable[[], tuple[int, dict[str, Any]]]
) -> tuple[int, dict[str, Any]]:
    """Do it the first time; later return the stored response (§10.1).

    The row of the key is written first, so a concurrent repetition waits for it.

    Raises:
        Conflict: the key was used for a different request.
    """
    now = clock.now()
    key = hashlib.sha256(key.encode()).hexdigest()
    fingerprint = hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()
    with atomic():
        BulkRequest.objects.filter(
            operation=operation, key=key, created_at__lte=now - KEPT
        ).delete()
        fresh = BulkRequest(operation=operation, key=key, fingerprint=fingerprint, created_at=now)
        BulkRequest.objects.bulk_create([fresh], ignore_conflicts=True)
        row = BulkRequest.objects.select_for_update().get(operation=operation, key=key)
        if row.fingerprint != fingerprint:
            raise Conflict(
                "This idempotency key was used for another request.", operation=operation
            )
        if row.status is not None and row.response is not None:
            return row.status, row.response
        status, document = act()
        document = orjson.loads(orjson.dumps(document))
        BulkRequest.objects.filter(pk=row.pk).update(status=status, response=document)
    return status, document
