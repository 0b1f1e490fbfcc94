"""An event of the record as it is sent; its JSON is made once for all subscriptions (§4)."""

from __future__ import annotations

from typing import Any

from ..http.renderers import dumps
from ..models import Event
from ..record import events
from ..record.transitions import Transition, transition_of
from ..spec.timestamps import format_timestamp
from ..spec.worker_ids import shown
from .channels import ALL, AS_HERE, JOB, QUEUE, Face

STATE_CHANGED = "job.state_changed"
PROGRESS, HEARTBEAT = "job.progress", "job.heartbeat"


class Message:
    """An event, and its serializations so far."""

    __slots__ = ("_made", "event", "id", "name", "project", "timestamp", "trace_id", "transition")

    def __init__(self, event: Event, project: str = "", trace_id: str = "") -> None:
        """
        Args:
            project: project of the job it is about; empty if there is none.
            trace_id: trace of that job; empty if it has none.
        """
        self.event = event
        self.project = project
        self.trace_id = trace_id
        self.id = events.cursor_of(event)
        self.timestamp = format_timestamp(event.time)
        self.transition: Transition | None = transition_of(event)
        self.name = STATE_CHANGED if self.transition else event.type
        self._made: dict[tuple[str, bool, str], bytes] = {}

    @property
    def position(self) -> int:
        return self.event.pk

    @property
    def is_last(self) -> bool:
        """Whether its job has reached a terminal state."""
        return self.transition is not None and self.transition.is_last

    def channels(self) -> list[str]:
        """The names of all channels that it belongs to."""
        names = [ALL]
        if self.event.queue:
            names.append(f"{QUEUE}{self.event.queue}")
        if self.event.job_type:
            names.append(f"{JOB}{self.event.subject}")
        return names

    def name_of(self, face: Face) -> str:
        return self.event.type if face.is_own else self.name

    def data(self, face: Face, project: str) -> bytes:
        """Its payload as JSON (§4.1 to §4.3), for a key of `project`."""
        return self._once("data", face, project, self._data)

    def frame(self, face: Face, project: str) -> bytes:
        """The complete server-sent event."""
        return self._once("frame", face, project, self._frame)

    def named_frame(self, face: Face, project: str) -> bytes:
        """The same, with the event's name also in its data, for clients that read only the data."""
        return self._once("named", face, project, self._named_frame)

    def tail(self, face: Face, project: str) -> bytes:
        """A WebSocket's message after its member `channel` (§3.4)."""
        return self._once("tail", face, project, self._tail)

    def _once(self, what: str, face: Face, project: str, make: Any) -> bytes:
        key = (what, face.is_own, project if self.event.worker_id else "")
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = make(face, project)
        return made

    def _frame(self, face: Face, project: str) -> bytes:
        return frame(self.id, self.name_of(face), self.data(face, project))

    def _named_frame(self, face: Face, project: str) -> bytes:
        name = self.name_of(face)
        return frame(self.id, name, with_name(name, self.data(face, project)))

    def _tail(self, face: Face, project: str) -> bytes:
        return b',"event":%s,"data":%s,"id":%s,"timestamp":%s}' % (
            dumps(self.name_of(face)),
            self.data(face, project),
            dumps(self.id),
            dumps(self.timestamp),
        )

    def _data(self, face: Face, project: str) -> bytes:
        return dumps(self._document(face, project))

    def _document(self, face: Face, project: str) -> dict[str, Any]:
        document = self._payload(face, project)
        if self.trace_id:
            document["trace_id"] = self.trace_id
        return document

    def _payload(self, face: Face, project: str) -> dict[str, Any]:
        event = self.event
        data: dict[str, Any] = event.data or {}
        if face == AS_HERE and self.transition is not None:
            return {
                "job_id": event.subject,
                "queue": event.queue,
                "type": event.job_type,
                "from": self.transition.before,
                "to": self.transition.after,
                "timestamp": self.timestamp,
            }
        if event.type == PROGRESS:
            document = {"job_id": event.subject, "progress": round(data["progress_percent"])}
            if "message" in data:
                document["message"] = data["message"]
            return document | {"timestamp": self.timestamp}
        if event.type == HEARTBEAT:
            return {
                "job_id": event.subject,
                "worker_id": shown(event.worker_id, project),
                "timestamp": self.timestamp,
            }
        document = events.event_document(event, project=project, tenant=self.project)["data"]
        return document | {"timestamp": self.timestamp}


def frame(identifier: str, name: str, data: bytes) -> bytes:
    """A server-sent event (§2.3)."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (identifier.encode(), name.encode(), data)


def with_name(name: str, data: bytes) -> bytes:
    """A JSON object with its name added as the first member."""
    more = b"," if len(data) > 2 else b""
    return b'{"event":%s%s%s' % (dumps(name), more, data[1:])
