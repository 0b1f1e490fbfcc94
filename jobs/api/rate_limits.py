"""Rate limit partitions over HTTP: read them, and override limits temporarily (OJS rate limiting
§10)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ..access.audit import of_caller, record_action
from ..engine import limits
from ..errors import NotFound
from ..http.base import OJSViewSet
from ..http.paging import page
from ..http.parameters import Page
from ..http.request import Request
from ..models import RateLimit
from ..spec import rate_policy
from ..spec.operator_requests import LimitsOverride
from ..spec.timestamps import format_timestamp
from ..store import clock
from ..store.database import atomic


class RateLimitViewSet(OJSViewSet):
    """`/ojs/v1/rate-limits`"""

    resource = "rate-limits"
    queries = {"list": Page}

    def list(self, request: Request) -> Response:
        rows, pagination = page(
            request.query_params,
            RateLimit.objects.order_by("key"),
            keys=lambda row: [row.key],
            after=lambda found, keys: found.filter(key__gt=keys[0]),
            parts=1,
        )
        shown = documents(rows)
        # As the admin UI and the command line read it.
        return Response({"items": shown, "rate_limits": shown, "pagination": pagination})

    def retrieve(self, request: Request, key: str) -> Response:
        return Response(documents([_found(key)])[0])

    def override(self, request: Request, key: str) -> Response:
        """Override the limits of a key, until `expires_at` or permanently (§10.2)."""
        body = self.read(LimitsOverride, required=True)
        now = clock.now()
        until = LimitsOverride.expires_at.read(body, now)
        held = LimitsOverride.held_until.read(body, now)
        terms = ("expires_at", "held_until")
        given = {name: value for name, value in body.items() if name not in terms}
        policy = rate_policy.queue_policy(given, "rate_limit")
        if not key.startswith(limits.QUEUE_KEY):
            # After the project of the jobs, if they have one.
            rate_policy.JobLimits.key.check(key.rpartition("@")[2], "key")
        with atomic():
            # The first job of the key finds the override there (§10.2).
            RateLimit.objects.get_or_create(pk=key, defaults={"policy": {}, "updated_at": now})
            changes: dict[str, Any] = {"override": policy, "override_until": until}
            selection = {"ids": [key], "override": policy}
            if "held_until" in body:
                changes["held_until"] = held
                selection["held_until"] = body["held_until"]
            self._change(key, changes, selection)
        return Response(documents([_found(key)])[0])

    def restore(self, request: Request, key: str) -> Response:
        """End an override: the limits of the key's jobs, or of its queue, hold again."""
        changes: dict[str, Any] = {"override": {}, "override_until": None}
        with atomic():
            if not self._change(key, changes, {"ids": [key], "override": {}}):
                raise _unknown(key)
        return Response(documents([_found(key)])[0])

    def _change(self, key: str, changes: dict[str, Any], selection: dict[str, Any]) -> bool:
        """Change a partition, and tell the audit; return whether there is one."""
        if not limits.change([key], **changes):
            return False
        actor = of_caller(self.caller, self.request)
        record_action(actor, "change_ratelimit", kind="ratelimit", count=1, selection=selection)
        return True


def _found(key: str) -> RateLimit:
    row = RateLimit.objects.filter(pk=key).first()
    if row is None:
        raise _unknown(key)
    return row


def _unknown(key: str) -> NotFound:
    return NotFound(f"Rate limit '{key}' not found.", resource_type="rate_limit", resource_id=key)


def documents(rows: Any) -> Any:
    """The current state of the partitions (§10.1)."""
    now = clock.now()
    keys = [row.key for row in rows]
    active, waiting = limits.running_jobs(keys), limits.waiting_jobs(keys)
    return [_document(row, active[row.key], waiting[row.key], now) for row in rows]


def _document(row: RateLimit, active: int, waiting: int, now: Any) -> dict[str, Any]:
    policy = row.effective(now)
    document: dict[str, Any] = {"key": row.key}
    limit = policy.get("concurrency")
    if limit is not None:
        free = max(0, limit - active)
        document["concurrency"] = {"limit": limit, "active": active, "available": free}
    if rate := policy.get("rate"):
        document["rate"] = rate | {
            "current_count": rate_policy.started_within(rate, row.starts, now),
            "window_resets_at": format_timestamp(rate_policy.empty_at(rate, row.starts, now)),
        }
    if throttle := policy.get("throttle"):
        document["throttle"] = throttle | {"next_allowed_at": format_timestamp(row.next_at or now)}
    if row.held_until is not None and row.held_until > now:
        document["held_until"] = format_timestamp(row.held_until)
    if row.override and policy is not row.policy and row.override_until is not None:
        document["override_expires_at"] = format_timestamp(row.override_until)
    return document | {"on_limit": policy.get("on_limit", "wait"), "waiting_count": waiting}
