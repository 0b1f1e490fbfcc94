"""Live events as server-sent events (OJS realtime §2): of a job, of a queue, of any channel."""

from __future__ import annotations

from urllib.parse import parse_qsl

from django.http import StreamingHttpResponse
from rest_framework.response import Response

from .. import access
from ..access import Binding
from ..access.address import address_of
from ..errors import InvalidRequest, UpgradeRequired
from ..http.authentication import key_of
from ..http.base import OJSViewSet
from ..http.dialects import STREAM_HEADERS
from ..http.parameters import ChannelQuery, FollowQuery
from ..http.request import Meta, Request
from ..http.verbs import VerbRequest, VerbResponse
from ..realtime import channels
from ..realtime.channels import Channel, Filter
from ..realtime.sse import EventStream

RESOURCE = "live"
TYPES = (FollowQuery.event_types, FollowQuery.types)
"""The specification's parameter, and that of the public command line."""
ONE_OF = (ChannelQuery.channel, ChannelQuery.queue, ChannelQuery.job_id)


class LiveViewSet(OJSViewSet):
    """`/ojs/v1/jobs/{id}/events`, `/ojs/v1/queues/{name}/events` and `/ojs/v1/events/stream`"""

    resource = RESOURCE
    queries = {"of_job": FollowQuery, "of_queue": FollowQuery, "of_channel": ChannelQuery}

    def of_job(self, request: Request, **named: str) -> StreamingHttpResponse:
        """The events of a job, until it has ended (§2.1)."""
        return self.open_stream(of_job, **named)

    def of_queue(self, request: Request, **named: str) -> StreamingHttpResponse:
        """The events of the jobs of a queue (§2.2)."""
        return self.open_stream(of_queue, **named)

    def of_channel(self, request: Request) -> StreamingHttpResponse:
        """The events of any channel, for the public SDKs."""
        return self.open_stream(of_channel)

    def socket(self, request: Request) -> Response:
        """The address of the WebSocket (§3.1), for a request that is not a handshake."""
        raise UpgradeRequired(
            "This address takes WebSocket connections.",
            hint="Connect with a WebSocket client, to a server with an event loop.",
        )


def of_job(request: VerbRequest, job_id: str) -> VerbResponse:
    return _stream(request, channels.job(job_id), "of_job")


def of_queue(request: VerbRequest, name: str) -> VerbResponse:
    return _stream(request, channels.queue(name), "of_queue")


def of_channel(request: VerbRequest) -> VerbResponse:
    return _stream(request, _channel(_query(request.meta)), "of_channel")


def _channel(query: dict[str, str]) -> Channel:
    """
    Raises:
        InvalidRequest: it names several channels, or one that does not exist.
    """
    named = {one.name: query[one.name] for one in ONE_OF if query.get(one.name)}
    if len(named) > 1:
        raise InvalidRequest(
            f"Give one of 'channel', 'queue' and 'job_id', not {len(named)}.", field="channel"
        )
    if "queue" in named:
        return channels.queue(named["queue"])
    if "job_id" in named:
        return channels.job(named["job_id"])
    return channels.parse(named.get("channel", channels.ALL))


def _query(meta: Meta) -> dict[str, str]:
    return dict(parse_qsl(meta.get("QUERY_STRING", "")))


def _stream(request: VerbRequest, channel: Channel, action: str) -> VerbResponse:
    meta, query = request.meta, _query(request.meta)
    listed = filter(None, (parameter.read(query) for parameter in TYPES))
    types = [name.strip() for text in listed for name in text.split(",") if name.strip()]
    stream = EventStream(
        request.caller,
        channel,
        Filter(types or None),
        key=key_of(meta),
        address=address_of(meta),
        command=access.find(Binding.OJS, f"{RESOURCE}.{action}"),
        last_event_id=meta.get("HTTP_LAST_EVENT_ID") or FollowQuery.last_event_id.read(query) or "",
        names_events=action == "of_channel",
    )
    response = VerbResponse(None, stream=stream)
    response.headers |= STREAM_HEADERS
    return response
