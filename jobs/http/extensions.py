"""Extensions that this server names, or that a request needs (OJS extension lifecycle §7, §8).

A document is named only if it holds as a whole (§4.2): docs/extensions has its requirements.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ..conf import ojs_settings
from ..errors import ExtensionNotSupported
from ..record import tracing
from ..spec.json_schema import is_installed
from .loop import LOOP

EXTENSIONS = [
    "urn:ojs:ext:admin-api",
    "urn:ojs:ext:backpressure",
    "urn:ojs:ext:bulk-operations",
    "urn:ojs:ext:dead-letter",
    "urn:ojs:ext:durable-execution",
    "urn:ojs:ext:experimental:job-versioning",
    "urn:ojs:ext:fair-scheduling",
    "urn:ojs:ext:payload-limits",
    "urn:ojs:ext:progress",
    "urn:ojs:ext:queue-config",
    "urn:ojs:ext:rate-limiting",
    "urn:ojs:ext:results",
    "urn:ojs:ext:x:django-ojs:batch-ack",
    "urn:ojs:ext:x:django-ojs:fetch-with-acks",
    "urn:ojs:ext:x:django-ojs:fetch-wait",
    "urn:ojs:ext:x:django-ojs:jobs-lost",
    "urn:ojs:ext:x:django-ojs:autoscaling",
    "urn:ojs:ext:x:django-ojs:graceful-shutdown",
    "urn:ojs:ext:x:django-ojs:saga",
    "urn:ojs:ext:x:django-ojs:timeouts",
]
"""The last ones are this server's own: lists in ACK and FAIL, acks and failures in FETCH,
`wait_ms`, `jobs_lost` in BEAT, the metrics for autoscalers, sagas (OJS workflows §14, which has no
name of its own), and documents from which the worker protocol differs in a requirement."""
TENANTS = "urn:ojs:ext:multi-tenancy"
"""Added unless `MULTI_TENANCY` is off."""
ENCRYPTION = "urn:ojs:ext:encryption"
"""Added where the extra `encryption` is installed."""
HISTORY = "urn:ojs:ext:execution-history"
"""Added where events are recorded."""
SCHEMAS = "urn:ojs:ext:schema-registry"
"""Added where the extra `schemas` is installed."""
WEBHOOKS = "urn:ojs:ext:webhooks"
"""Added where there is a record of events to send."""
CLOUDEVENTS = "urn:ojs:ext:x:django-ojs:cloudevents"
"""Added by `has_cloudevents`."""
TRACING = "urn:ojs:ext:distributed-tracing"
OBSERVABILITY = "urn:ojs:ext:observability"
"""Added by `observed`."""
REALTIME = "urn:ojs:ext:experimental:realtime"
"""Added by servers that have an event loop."""


def is_live(meta: Mapping[str, Any]) -> bool:
    """Whether the server of this request can send live events."""
    return LOOP in meta and ojs_settings.RECORD_EVENTS


def extensions(meta: Mapping[str, Any]) -> list[str]:
    """Return the names of the extensions that the server of this request has."""
    return [
        *EXTENSIONS,
        *([TENANTS] if ojs_settings.MULTI_TENANCY != "off" else []),
        *([ENCRYPTION] if find_spec("cryptography") else []),
        *([HISTORY] if ojs_settings.RECORD_EVENTS else []),
        *([SCHEMAS] if is_installed() else []),
        *([WEBHOOKS] if ojs_settings.RECORD_EVENTS else []),
        *([CLOUDEVENTS] if has_cloudevents() else []),
        *observed(),
        *([REALTIME] if is_live(meta) else []),
    ]


def has_cloudevents() -> bool:
    """Whether events are recorded, have a source of their own, and triggers may have JSONPath."""
    has_source = bool(ojs_settings.CLOUDEVENTS_SOURCE or ojs_settings.SITE_URL)
    return ojs_settings.RECORD_EVENTS and has_source and find_spec("jsonpath") is not None


def observed() -> list[str]:
    """Return the extensions of observability that hold in this process."""
    if tracing.recorder is None:
        return []
    is_counted = ojs_settings.METRICS and ojs_settings.RECORD_EVENTS
    return [TRACING, *([OBSERVABILITY] if is_counted and find_spec("prometheus_client") else [])]


def check_extensions(meta: Mapping[str, Any]) -> None:
    """
    Raises:
        ExtensionNotSupported: `OJS-Requires-Extension` names one that this server lacks (§8.3).
    """
    needed = meta.get("HTTP_OJS_REQUIRES_EXTENSION")
    if not needed:
        return
    named = extensions(meta)
    for extension in filter(None, map(str.strip, needed.split(","))):
        if extension not in named:
            raise ExtensionNotSupported(
                f"Extension '{extension}' is not supported by this server.",
                extension=extension,
                supported=named,
            )
