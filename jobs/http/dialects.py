"""Adaptations for particular public clients, recognized by their requests.

All four public SDKs send an `OJS-Version` header; plain HTTP users do not. No other module knows
about these differences.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from ..spec.workflow_plans import StepOptions
from .request import Meta

MEDIA_TYPE = "application/openjobspec+json"
PLAIN_JSON = "application/json"
EVENTS = "text/event-stream"
STREAM_HEADERS = {
    "Content-Type": EVENTS,
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""Headers of server-sent events: they must be neither cached nor buffered on their way."""
# The Python SDK reads a response only if its Content-Type contains "application/json". A
# parameter provides that without changing the media type that the binding requires.
MEDIA_TYPE_FOR_SDKS = f'{MEDIA_TYPE}; profile="application/json"'


def is_sdk(meta: Meta) -> bool:
    return "HTTP_OJS_VERSION" in meta


def is_go_sdk(meta: Meta) -> bool:
    """The others send `1.0`."""
    return meta.get("HTTP_OJS_VERSION", "").startswith("1.0.0-rc.")


def media_type(meta: Meta) -> str:
    accepted = meta.get("HTTP_ACCEPT", "")
    if PLAIN_JSON in accepted and MEDIA_TYPE not in accepted:
        return PLAIN_JSON
    return MEDIA_TYPE_FOR_SDKS if is_sdk(meta) else MEDIA_TYPE


def is_preferred(request: HttpRequest, media_type: str) -> bool:
    """Whether the client accepts a media type by name, and does not prefer plain JSON (RFC 9110
    §12.5.1)."""
    accepted = request.accepted_types
    named = [each.quality for each in accepted if f"{each.main_type}/{each.sub_type}" == media_type]
    plain = [
        found.quality
        for each in (MEDIA_TYPE, PLAIN_JSON)
        if (found := request.accepted_type(each)) is not None
    ]
    return bool(named) and max(named) >= max(plain, default=0)


def queue_member(meta: Meta, queue: dict[str, Any]) -> Any:
    """The member `queue` of a response. SDKs read the name that the binding specifies; plain users
    and the public conformance cases read an object."""
    return queue["name"] if is_sdk(meta) else queue


def schema_version(meta: Meta, version: str | int) -> str | int:
    """The version of a schema. Those of SDKs with types are texts; elsewhere a major version alone
    is a number, as in OJS HTTP §15."""
    return str(version) if is_sdk(meta) else version


def job_reply(job: dict[str, Any]) -> dict[str, Any]:
    """A job as `job`; the Ruby SDK and the command line read its fields at the top level."""
    return job | {"job": job}


def workflow_reply(workflow: dict[str, Any]) -> dict[str, Any]:
    """A workflow as `workflow`, and as others read it, at the top level."""
    return workflow | {"workflow": workflow}


def purge_reply(method: str | None, document: dict[str, Any]) -> dict[str, Any]:
    """What a purge deleted. The command line, which sends POST, reads the number as `deleted`."""
    return document | {"deleted": document["purged_count"]} if method == "POST" else document


CALLBACKS_OF_GO = {
    "on-complete": "on_complete",
    "on-success": "on_success",
    "on-failure": "on_failure",
}
"""Step id → callback."""


def workflow_request(meta: Meta, document: dict[str, Any]) -> dict[str, Any]:
    """A workflow as other clients send it. The Go SDK sends a batch as a graph too, but marks its
    callbacks only by their ids."""
    steps = document.get("steps")
    if not (is_go_sdk(meta) and type(steps) is list):
        return document
    if not all(type(step) is dict and type(step.get("id")) is str for step in steps):
        return document
    jobs = [step["id"] for step in steps if step["id"] not in CALLBACKS_OF_GO]
    return document | {"steps": [_marked(step, jobs) for step in steps]}


def _marked(step: dict[str, Any], jobs: list[str]) -> dict[str, Any]:
    callback = CALLBACKS_OF_GO.get(step["id"])
    options = step.get("options") or {}
    if callback is None or step.get("depends_on") != jobs or type(options) is not dict:
        return step
    return step | {"options": {StepOptions.callback_type.name: callback, **options}}
