"""Manifest and health (OJS HTTP §8, §21). The manifest lists only what works."""

from __future__ import annotations

import re
import time
from typing import Any

from django.db import DatabaseError, InterfaceError
from rest_framework.response import Response

from .. import __version__
from ..conf import is_served, ojs_settings, protocols
from ..http.base import OJSViewSet
from ..http.body import COMPRESSIONS
from ..http.endpoints import announced, at_this_port
from ..http.extensions import extensions, is_live
from ..http.request import Request
from ..http.versioning import SPEC_VERSION
from ..spec.json_schema import is_installed
from ..spec.validation import META_SIZE, QUEUE_LENGTH, TYPE_LENGTH
from ..store import writable
from ..store.database import connection
from ..store.trouble import explain

STARTED = time.monotonic()
PORT = re.compile(r":\d+\Z")
BACKENDS = {"postgresql": "postgres"}
CAPABILITIES = {
    "batch_enqueue": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": is_installed(),
    "unique_jobs": True,
    "workflows": True,
    "pause_resume": True,
    "events": True,
}


def backend() -> str:
    vendor = connection().vendor
    return BACKENDS.get(vendor, vendor)


class ManifestViewSet(OJSViewSet):
    """`/ojs/manifest`"""

    resource = "manifest"

    def retrieve(self, request: Request) -> Response:
        base = request.path.rsplit("/manifest", 1)[0]
        mount = base.removesuffix("/ojs")
        # A server with a port of its own was started on purpose, so its address is preferred.
        elsewhere = at_this_port(request, mount) | endpoints_beside(
            PORT.sub("", request.get_host())
        )
        for protocol in protocols():
            if protocol.http and protocol.http.in_manifest and is_served(protocol):
                beside = f"{mount}/{protocol.http.path}"
                elsewhere[protocol.name] = request.build_absolute_uri(beside)
        can_stream = is_live(request.META)
        codec_server = ojs_settings.CODEC_SERVER_URL
        return Response(
            {
                "ojs_version": SPEC_VERSION,
                "specversion": SPEC_VERSION,
                "implementation": {
                    "name": "django-ojs",
                    "version": __version__,
                    "language": "python",
                },
                "conformance_level": 4,
                "conformance_tier": "runtime",
                "protocols": ["http", *sorted(elsewhere)],
                "backend": backend(),
                "capabilities": CAPABILITIES | {"realtime": can_stream},
                "unique_job_strength": "strong",
                "delivery_guarantees": {
                    "jobs": "at-least-once",
                    "events": "at-least-once" if ojs_settings.RECORD_EVENTS else "best-effort",
                },
                "extensions": extensions(request.META),
                **({"codec_server_url": codec_server} if codec_server else {}),
                "payload_limits": {
                    "max_envelope_bytes": ojs_settings.MAX_BODY_SIZE,
                    "max_meta_bytes": META_SIZE,
                    "max_queue_name_bytes": QUEUE_LENGTH,
                    "max_job_type_bytes": TYPE_LENGTH,
                    "supported_compression": COMPRESSIONS,
                    "external_references": True,
                    "chunking": False,
                    "per_queue_limits": False,
                },
                "endpoints": {
                    "base_url": request.build_absolute_uri(f"{base}/v1"),
                    "manifest": f"{base}/manifest",
                    "health": f"{base}/v1/health",
                    "metrics": f"{base}/v1/metrics",
                    **({"events": f"{base}/v1/events/stream"} if can_stream else {}),
                    **elsewhere,
                },
            }
        )


def endpoints_beside(host: str) -> dict[str, str]:
    """Addresses of workers' endpoints on other ports; empty while the database is unavailable."""
    try:
        return announced(host)
    except (DatabaseError, InterfaceError):
        return {}


def backend_health() -> dict[str, Any]:
    """Check that the database responds (`unhealthy`), takes writes, and isolates as it must
    (`degraded`).
    """
    started = time.monotonic()
    try:
        obstacle = writable.shortcoming()
    except (DatabaseError, InterfaceError) as problem:
        return {"type": backend(), "status": "unhealthy", "error": str(explain(problem))}
    found = {"latency_ms": round((time.monotonic() - started) * 1000)}
    if obstacle:
        return {"type": backend(), "status": "degraded", **found, "error": obstacle}
    return {"type": backend(), "status": "healthy", **found}


def health_document(backend: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "ok" if backend["status"] == "healthy" else "degraded",
        "version": SPEC_VERSION,
        "uptime_seconds": int(time.monotonic() - STARTED),
        "backend": backend,
    }
