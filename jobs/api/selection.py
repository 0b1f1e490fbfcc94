"""Selects the jobs of a bulk request and changes them (OJS bulk operations §6 to §8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction

from .. import engine
from ..access.audit import SHOWN, Actor, record_action
from ..access.projects import scope_to
from ..access.redaction import redact
from ..conf import ojs_settings
from ..engine.bulk_selection import OPERATIONS, Operation, filtered
from ..errors import BatchTooLarge
from ..models import Job
from ..record.events import bulk_event, record
from ..spec.bulk_requests import BulkChange
from ..spec.fields import Document, refuse
from ..spec.identifiers import parse_uuid
from ..spec.lifecycle import State
from ..store.database import alias, atomic


@dataclass(frozen=True)
class Selection:
    """The jobs of a bulk request: by ids, with a result for each, or by a filter."""

    operation: str
    jobs: Any
    ids: list[str] | None
    actor: Actor
    wanted: Document | None = None

    @classmethod
    def read(
        cls, body: Document, operation: str, actor: Actor, project: str, *, sees_all: bool
    ) -> Selection:
        """
        Args:
            sees_all: no value is hidden from the caller.

        Raises:
            InvalidRequest: neither ids nor a filter, both, or an invalid one.
            BatchTooLarge: too many ids.
            PermissionDenied: the filter names a value that is hidden from the caller.
        """
        ids, wanted = body.get("job_ids"), BulkChange.filter.read(body)
        if (ids is None) == (wanted is None):
            raise refuse("job_ids", "Name the jobs by either 'job_ids' or 'filter'.")
        if wanted is not None:
            default = OPERATIONS[operation].default
            jobs = scope_to(filtered(wanted, default, sees_all=sees_all), project)
            return cls(operation, jobs, None, actor, wanted)
        ids = BulkChange.job_ids.read(body) or []
        if len(ids) > ojs_settings.MAX_BULK:
            raise BatchTooLarge(len(ids), ojs_settings.MAX_BULK)
        known = [job_id for job_id in map(parse_uuid, ids) if job_id is not None]
        return cls(operation, scope_to(Job.objects.filter(pk__in=known), project), ids, actor)

    @property
    def verb(self) -> Operation:
        return OPERATIONS[self.operation]

    def preview(self) -> dict[str, Any]:
        """The number of jobs it would change, without changing them."""
        matched, more = engine.bulk.preview(self.verb.of(self.jobs))
        return {"dry_run": True, "total_matched": matched, "has_more": more}

    def carry_out(self, whole: bool) -> tuple[int, dict[str, Any]]:
        """Do it, and return the status and the response.

        Args:
            whole: change all of the jobs or none.
        """
        with atomic():
            status, document = self._by_ids(whole) if self.ids is not None else self._by_filter()
            if status == 422:
                transaction.set_rollback(True, using=alias())
        counts = {name: document[name] for name in (self.verb.did, "skipped")}
        if counts[self.verb.did]:
            self._trace(counts[self.verb.did])
        record([bulk_event(self.operation, total=document["total_matched"], **counts)])
        return status, document

    def _trace(self, count: int) -> None:
        # Others read the record than those who may select by what is hidden.
        chosen = {"filter": redact(self.wanted)} if self.ids is None else {"ids": self.ids[:SHOWN]}
        record_action(self.actor, self.verb.permission, kind="job", count=count, selection=chosen)

    def _act(self) -> list[UUID]:
        extra = {"cancelled_by": self.actor.name} if self.operation == "cancel" else {}
        return self.verb.act(self.verb.of(self.jobs), **extra)

    def _by_filter(self) -> tuple[int, dict[str, Any]]:
        # Any other jobs that match are left alone, and not counted.
        done = self._act()
        did = self.verb.did
        _, more = engine.bulk.preview(self.verb.of(self.jobs), most=0)
        return 200, {
            "total_matched": len(done),
            did: len(done),
            "skipped": 0,
            "has_more": more,
            "items": [
                {"index": index, "job_id": str(job_id), "status": did}
                for index, job_id in enumerate(done)
            ],
        }

    def _by_ids(self, whole: bool) -> tuple[int, dict[str, Any]]:
        assert self.ids is not None
        known = {row[0]: row[1:] for row in self.jobs.values_list("pk", "state", "workflow")}
        done = set(self._act())
        did = self.verb.did
        items: list[dict[str, Any]] = []
        reported: set[UUID] = set()
        for index, name in enumerate(self.ids):
            job_id = parse_uuid(name)
            item: dict[str, Any] = {"index": index, "job_id": name}
            if job_id is not None and job_id in done - reported:
                reported.add(job_id)
                items.append(item | {"status": did})
                continue
            reason = "There is no such job"
            if job_id in reported:
                reason = "The request names it twice"
            elif job_id in known:
                reason = self._why_not(*known[job_id])
            items.append(item | {"status": "skipped", "reason": reason})
        skipped = len(items) - len(reported)
        status = 200 if not skipped else 207
        if not reported or (whole and skipped):
            status = 422
        if status == 422 and whole:
            reported = set()
            skipped = len(items)
        return status, {
            "total_matched": len(items),
            did: len(reported),
            "skipped": skipped,
            "items": items if reported or not whole else [_undone(item, did) for item in items],
        }

    def _why_not(self, state: State, workflow: UUID | None) -> str:
        is_spared = self.operation == "delete" or (self.operation == "retry" and workflow)
        if is_spared and state in self.verb.states:
            return engine.bulk.why_spared(workflow, self.verb.did)
        return f"Job is in {state} state"


def _undone(item: dict[str, Any], did: str) -> dict[str, Any]:
    if item["status"] != did:
        return item
    return item | {"status": "skipped", "reason": "Undone: another job was skipped"}
