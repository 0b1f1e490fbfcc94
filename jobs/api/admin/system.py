"""Maintenance mode and configuration (OJS admin API §12)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from rest_framework.response import Response

from ... import __version__, conf
from ...engine import maintenance
from ...http.extensions import extensions
from ...http.request import Request
from ...http.versioning import SPEC_VERSION
from ...models import Maintenance
from ...spec.operator_requests import SwitchMaintenance
from ...spec.timestamps import format_timestamp
from ...store import clock
from ..system import CAPABILITIES, backend
from .base import AdminViewSet, reason_of
from .documents import moment

SECRET = re.compile(r"SECRET|PASSWORD|TOKEN|PRIVATE")
"""Options with these names are never shown."""


class SystemViewSet(AdminViewSet):
    """`/ojs/v1/admin/system`"""

    resource = "system"

    def maintenance(self, request: Request) -> Response:
        """Whether the server is in maintenance mode."""
        return Response(maintenance_document(maintenance.current()))

    def switch(self, request: Request) -> Response:
        """Begin maintenance, or end it (§12.1).

        It ends only on request: `estimated_duration` is information for clients, and a migration
        that takes longer must not find the workers running. With `until`, it ends automatically.
        """
        body = self.read(SwitchMaintenance, required=True)
        enabled = SwitchMaintenance.enabled.read(body)
        reason = reason_of(body)
        if not enabled:
            maintenance.end(actor=self.actor, reason=reason)
            ended = {"disabled_at": format_timestamp(clock.now())}
            return Response(maintenance_document(None) | ended)
        switch = maintenance.begin(
            actor=self.actor,
            reason=reason,
            until=SwitchMaintenance.until.read(body, clock.now()),
            lasts=SwitchMaintenance.estimated_duration.read(body)
            or SwitchMaintenance.duration.read(body),
            refuses_jobs=SwitchMaintenance.refuse_jobs.read(body),
        )
        return Response(maintenance_document(switch))

    def config(self, request: Request) -> Response:
        """The server's configuration, without secrets (§12.2); durations in seconds."""
        inner = {name: asdict(options) for name, options in conf.protocol_options().items()}
        return Response(
            {
                "specversion": SPEC_VERSION,
                "version": __version__,
                "backend": backend(),
                "capabilities": CAPABILITIES,
                "extensions": extensions(request.META),
                "options": plain(asdict(conf.configured()) | inner),
            }
        )


def maintenance_document(switch: Maintenance | None) -> dict[str, Any]:
    begun = None if switch is None else moment(switch.since)
    ends = None if switch is None else moment(switch.estimated_until or switch.until)
    document = {
        "maintenance": switch is not None,
        "reason": None if switch is None else switch.reason,
        "enabled_at": begun,
        "estimated_end": ends,
        # As the admin UI calls them.
        "enabled": switch is not None,
        "started_at": begun,
        "ends_at": ends,
    }
    if switch is None:
        return document
    return document | {
        "until": moment(switch.until),
        "enabled_by": switch.started_by,
        "refuse_jobs": switch.refuses_jobs,
    }


def plain(value: Any) -> Any:
    """A settings value in JSON types."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if not SECRET.search(str(k).upper())}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
