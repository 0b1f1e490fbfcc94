"""A worker of any OJS server: the same six verbs over HTTP (OJS HTTP §10). Needs no database.

Every thread has its own connection. Reports travel with the next fetch, and a fetch waits on the
server (`wait_ms`). A server that supports neither gets one report at a time, and is polled every
`poll_interval`.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import orjson

import jobs
from jobs.engine import Completion
from workers.lifecycle import WorkerState
from workers.protocol import Description

from . import wire
from .client import Answer, Exchange, Refused, Report, Request, Terms, Unavailable
from .context import JobContext, Progress
from .wake_event import WakeEvent

MEDIA_TYPE = "application/openjobspec+json"
TIMEOUT = 15.0
"""Seconds to wait for an answer."""
WAIT = 10.0
"""Seconds a fetch lets the server wait for work."""
PARTING = 1.0
"""Seconds a waiting fetch may take to come back when the worker stops fetching."""
USUAL = Terms()
BUSY = (408, 425, 429)
TOO_LARGE = 413


class HttpClient:
    """A client of the server at `url`, the address before `/ojs/v1`."""

    is_local = False

    def __init__(
        self, worker_id: str, url: str, api_key: str = "", poll_interval: float = 1.0
    ) -> None:
        """
        Raises:
            ValueError: `url` is not the address of a server.
        """
        self.worker_id = worker_id
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError(f"{url!r} is not an address such as https://jobs.example.com.")
        _ = self._url.port  # parsed on access, and may be invalid
        self._prefix = self._url.path.rstrip("/").removesuffix("/ojs/v1") + "/ojs/v1/"
        self._headers = {
            "Content-Type": MEDIA_TYPE,
            "Accept": MEDIA_TYPE,
            "OJS-Version": "1.0",
            "User-Agent": f"django-ojs/{jobs.__version__}",
        }
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._poll_interval = poll_interval
        self._local = threading.local()
        self._poll: _Poll | None = None
        self._not_before = 0.0
        self._carries_reports: bool | None = None
        """Whether the server settles reports sent with a fetch; None until known."""

    # The verbs

    def register(self, description: Description) -> Terms:
        if description.version:
            self._headers["User-Agent"] = description.version
        try:
            reply = self._post("workers/register", wire.description(self.worker_id, description))
        except NotThere:
            # §3.1: a server may know workers by their heartbeats alone.
            self._find_server()
            return USUAL
        return Terms(
            float(reply.get("heartbeat_interval") or USUAL.heartbeat_interval),
            float(reply.get("heartbeat_timeout") or USUAL.heartbeat_timeout),
        )

    def _find_server(self) -> None:
        """
        Raises:
            Refused: the address is not that of an OJS server.
        """
        try:
            self._ask("GET", "health")
        except NotThere as refusal:
            address = urlunsplit((*self._url[:2], self._prefix, "", ""))
            raise Refused(
                f"There is no OJS server at {address} ({refusal}). "
                "The URL is the address before /ojs/v1.",
                refusal.status,
            ) from None
        except (Refused, Unavailable):
            return  # something answers there

    def beat(
        self, state: WorkerState, active: Collection[str], description: Description, sequence: int
    ) -> Answer:
        body = wire.description(self.worker_id, description) | {
            "state": str(state),
            "active_jobs": len(active),
            "active_job_ids": list(active),
            "sequence": sequence,
        }
        try:
            reply = self._post("workers/heartbeat", body)
        except NotThere:
            return Answer(None, is_known=False)
        wanted = reply.get("state")
        known = wanted in [str(state) for state in WorkerState] and not reply.get("stale")
        return Answer(
            WorkerState(str(wanted)) if known else None, list(reply.get("jobs_lost") or ())
        )

    def exchange(self, reports: Sequence[Report], request: Request | None) -> Exchange:
        acks = [wire.ack(report) for report in reports if isinstance(report, Completion)]
        nacks = [wire.nack(report) for report in reports if not isinstance(report, Completion)]
        done = Exchange()
        if request is not None and self._carries_reports is not False:
            reply = self._fetch(request, acks=acks, nacks=nacks)
            done.jobs = [wire.context(job, self.worker_id) for job in reply.get("jobs") or ()]
            if not reports:
                return done
            self._carries_reports = "acks" in reply and "nacks" in reply
            if self._carries_reports:
                wire.note_refusals([*reply["acks"], *reply["nacks"]], done)
                return done
        elif request is not None:
            jobs = self._fetch(request).get("jobs") or ()
            done.jobs = [wire.context(job, self.worker_id) for job in jobs]
        self._settle(acks, nacks, done)
        return done

    def save_checkpoint(self, job_id: UUID, attempt: int, state: Any) -> None:
        body = {"state": state, "worker_id": self.worker_id, "attempt": attempt}
        self._post(f"jobs/{job_id}/checkpoint", body)

    def report_progress(self, progress: Progress) -> None:
        body = {"worker_id": self.worker_id, "attempt": progress.attempt}
        self._post(f"jobs/{progress.job_id}/progress", body | wire.progress(progress), "PUT")

    def deregister(self) -> None:
        try:
            self._post("workers/deregister", {"worker_id": self.worker_id})
        except NotThere:
            return

    # Waiting for work

    @property
    def is_waiting(self) -> bool:
        return self._poll is not None

    def wait(
        self, request: Request | None, wake_event: WakeEvent, timeout: float
    ) -> list[JobContext]:
        if self._poll is None and request is not None and time.monotonic() >= self._not_before:
            self._poll = _Poll(self, request, wake_event)
        if self._poll is None:
            wake_event.wait(min(timeout, max(0.0, self._not_before - time.monotonic())))
            return []
        if not self._poll.is_done:
            wake_event.wait(timeout)
        return self._take() if self._poll.is_done else []

    def stop_waiting(self) -> list[JobContext]:
        """Wait for the fetch to return: a server that knows the new state gives no more jobs."""
        if self._poll is None:
            return []
        self._poll.join(PARTING)
        if not self._poll.is_done:
            self._poll.abandon()
            return []
        try:
            return self._take()
        except (Unavailable, Refused):
            return []

    def _take(self) -> list[JobContext]:
        poll, self._poll = self._poll, None
        assert poll is not None
        jobs = poll.result()
        if not jobs and poll.took < WAIT / 2:
            # The server does not wait, or not now.
            self._not_before = poll.began + self._poll_interval
        return [wire.context(job, self.worker_id) for job in jobs]

    # The wire

    def recover(self) -> None:
        self.release()

    def release(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.close()
            self._local.connection = None

    @property
    def _connection(self) -> http.client.HTTPConnection | None:
        return getattr(self._local, "connection", None)

    def connect(self, timeout: float = TIMEOUT) -> http.client.HTTPConnection:
        https = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        return kind(self._url.hostname or "localhost", self._url.port, timeout=timeout)

    def _post(self, path: str, body: dict[str, Any], method: str = "POST") -> dict[str, Any]:
        return self._ask(method, path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        reused = self._connection
        connection = reused or self.connect()
        self._local.connection = connection
        try:
            try:
                return self.send(connection, path, body, method)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                # A kept connection may have been closed between two requests.
                if reused is None:
                    raise
                connection.close()
                return self.send(connection, path, body, method)
        except (OSError, http.client.HTTPException) as problem:
            self.release()
            raise Unavailable(f"{type(problem).__name__}: {problem}") from problem

    def send(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: dict[str, Any] | None,
        method: str = "POST",
    ) -> dict[str, Any]:
        """
        Raises:
            NotThere: there is no such endpoint, worker or job.
            Unavailable: the server cannot answer now.
            Refused: the server rejects the request.
        """
        data = None if body is None else orjson.dumps(body)
        connection.request(method, self._prefix + path, data, self._headers)
        reply = connection.getresponse()
        document = wire.document(reply.read())
        if reply.status < 300:
            return document
        error = document.get("error")
        error = error if isinstance(error, dict) else {}
        message = f"{reply.status} {error.get('message') or reply.reason}"
        if reply.status >= 500 or reply.status in BUSY:
            raise Unavailable(message)
        details = error.get("details")
        details = details if isinstance(details, dict) else {}
        kind = NotThere if reply.status in (404, 405, 410) else Refused
        raise kind(message, reply.status, str(details.get("current_state", "")))

    def fetch_body(self, request: Request, **more: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "worker_id": self.worker_id,
            "queues": list(request.queues),
            "count": request.count,
        }
        if request.types is not None:
            body["types"] = list(request.types)
        return body | {name: value for name, value in more.items() if value}

    def _fetch(self, request: Request, **more: Any) -> dict[str, Any]:
        # Both lists or none: the reply has them if the server knows them.
        carried = {"acks": more.get("acks", []), "nacks": more.get("nacks", [])}
        body = self.fetch_body(request)
        return self._post("workers/fetch", body | carried if any(carried.values()) else body)

    def _settle(
        self, acks: list[dict[str, Any]], nacks: list[dict[str, Any]], done: Exchange
    ) -> None:
        """Send reports one by one, which every server understands."""
        for path, reports in (("workers/ack", acks), ("workers/nack", nacks)):
            for report in reports:
                try:
                    self._post(path, report | {"worker_id": self.worker_id})
                except Refused as refusal:
                    job_id = UUID(report["job_id"])
                    if refusal.status in (404, 409):
                        done.refused.append((job_id, str(refusal), refusal.state))
                    elif refusal.status == TOO_LARGE and "result" in report:
                        done.too_large[job_id] = str(refusal)
                    else:
                        raise


class NotThere(Refused):
    """404: the worker, the job or the endpoint does not exist."""


class _Poll(threading.Thread):
    """A fetch that waits on the server, on a connection of its own, while the loop goes on."""

    def __init__(self, client: HttpClient, request: Request, wake_event: WakeEvent) -> None:
        super().__init__(name="ojs-poll", daemon=True)
        self._client = client
        self._body = client.fetch_body(request, wait_ms=int(WAIT * 1000))
        self._wake_event = wake_event
        self._connection = client.connect(WAIT + TIMEOUT)
        self._jobs: list[dict[str, Any]] = []
        self._problem: Exception | None = None
        self.is_done = False
        self.began = time.monotonic()
        self.took = 0.0
        self.start()

    def run(self) -> None:
        try:
            reply = self._client.send(self._connection, "workers/fetch", self._body)
            self._jobs = reply.get("jobs") or []
        except (OSError, http.client.HTTPException) as problem:
            self._problem = Unavailable(f"{type(problem).__name__}: {problem}")
        except (Unavailable, Refused) as problem:
            self._problem = problem
        finally:
            self.took = time.monotonic() - self.began
            self.is_done = True
            self._connection.close()
            self._wake_event.ring()

    def result(self) -> list[dict[str, Any]]:
        if self._problem is not None:
            raise self._problem
        return self._jobs

    def abandon(self) -> None:
        self._connection.close()
