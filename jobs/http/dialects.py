"""What single public clients need beyond the HTTP binding, told by what a request itself shows.

All four public SDKs send an `OJS-Version` header; plain HTTP users do not. The rest of the code
never knows.
"""

from __future__ import annotations

from typing import Any

MEDIA_TYPE = "application/openjobspec+json"
EVENTS = "text/event-stream"
# The Python SDK reads a reply only if its Content-Type contains "application/json". A parameter
# says so without leaving the media type the binding asks for.
MEDIA_TYPE_FOR_SDKS = f'{MEDIA_TYPE}; profile="application/json"'


def is_sdk(headers: Any) -> bool:
    return "HTTP_OJS_VERSION" in headers


def media_type(headers: Any) -> str:
    accepted = headers.get("HTTP_ACCEPT", "")
    if "application/json" in accepted and MEDIA_TYPE not in accepted:
        return "application/json"
    return MEDIA_TYPE_FOR_SDKS if is_sdk(headers) else MEDIA_TYPE


def queue_member(headers: Any, queue: dict[str, Any]) -> Any:
    """The member `queue` of a reply: SDKs decode the name that the binding puts there; plain users
    and the public conformance cases read an object."""
    return queue["name"] if is_sdk(headers) else queue


def job_reply(headers: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Wrap a job as `job`; the Ruby SDK reads its fields at the top level instead."""
    return job | {"job": job} if is_sdk(headers) else {"job": job}
