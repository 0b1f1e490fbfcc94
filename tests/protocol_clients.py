"""Workers of the four protocols, and producers, with the same interface.

They use only what the protocol's document specifies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import redis
import websockets

import jobs
from jobs.models import Job
from jobs.spec.identifiers import uuid7
from workers.bindings.flare import ids

from .flare_client import FlareClient
from .ojs_client import OJSClient
from .processes import PATIENCE

TYPE = "email.send"
QUEUE = "default"
SPECS = {TYPE: "v1"}
BROKEN = "It broke."
NOTHING_COMES = 0.3
"""Seconds to wait for a message that must not come, if the server pushes."""


class Claimed(NamedTuple):
    id: str
    args: list[Any]
    attempt: int


class Worker:
    """A worker. Reports return whether the server accepted them."""

    protocol: ClassVar[str]
    hears_directives = True

    def __init__(self, worker_id: str) -> None:
        self.id = worker_id

    def register(self) -> None:
        raise NotImplementedError

    def claim(self) -> Claimed:
        """Get a job, which must be available now or soon."""
        raise NotImplementedError

    def is_given_nothing(self) -> bool:
        raise NotImplementedError

    def progress(self, job_id: str, share: float) -> bool:
        raise NotImplementedError

    def complete(self, job_id: str) -> bool:
        raise NotImplementedError

    def fail(self, job_id: str, kind: str, message: str = BROKEN) -> bool:
        raise NotImplementedError

    def still_holds(self, job_id: str) -> bool:
        """Report that it runs a job; return whether it still holds the job."""
        raise NotImplementedError

    def directive(self) -> str:
        """The reply to its next heartbeat."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect without deregistering."""


class OJSWorker(Worker):
    protocol = "ojs"

    def __init__(self, worker_id: str, key: str = "") -> None:
        super().__init__(worker_id)
        self.http = OJSClient(key)

    def _post(self, path: str, **body: Any) -> Any:
        return self.http.send(f"workers/{path}", {"worker_id": self.id} | body)

    def register(self) -> None:
        said = {"hostname": "box", "pid": 1, "queues": [QUEUE], "concurrency": 10}
        reply = self._post("register", **said)
        assert reply.status_code < 300, reply.content

    def _fetch(self) -> list[Any]:
        return self.http.fetch(QUEUE, worker_id=self.id)

    def claim(self) -> Claimed:
        (job,) = self._fetch()
        return Claimed(job["id"], job["args"], job["attempt"])

    def is_given_nothing(self) -> bool:
        return self._fetch() == []

    def progress(self, job_id: str, share: float) -> bool:
        reply = self._post("progress", job_id=job_id, progress=share)
        assert reply.status_code == 200, reply.content
        return bool(reply.json()["progress"] == share)

    def complete(self, job_id: str) -> bool:
        return self._taken(self._post("ack", job_id=job_id))

    def fail(self, job_id: str, kind: str, message: str = BROKEN) -> bool:
        error = {"type": kind, "code": kind, "message": message}
        said = {"worker_id": self.id, "job_id": job_id, "error": error}
        # Escapes what is not ASCII, as many clients do.
        return self._taken(self.http.send("workers/nack", json.dumps(said).encode()))

    def _taken(self, reply: Any) -> bool:
        assert reply.status_code in (200, 409), reply.content
        return bool(reply.status_code == 200)

    def still_holds(self, job_id: str) -> bool:
        reply = self._post("heartbeat", state="running", active_job_ids=[job_id]).json()
        assert reply["jobs_extended"] in ([], [job_id])
        return bool(reply["jobs_extended"])

    def directive(self) -> str:
        return str(self._post("heartbeat", state="running").json()["state"])


class FlareWorker(Worker):
    protocol = "flare"
    hears_directives = False

    def __init__(self, worker_id: str, key: str = "") -> None:
        super().__init__(worker_id)
        self.http = FlareClient(key, worker_id)

    def register(self) -> None:
        reply = self.http.register(queues=[QUEUE], job_types=[TYPE])
        assert reply.status_code == 200, reply.content

    def claim(self) -> Claimed:
        (job,) = self.http.poll(queues=[QUEUE])
        payload = job["payload"]
        # Arguments other than a single object arrive wrapped.
        args = payload["args"] if list(payload) == ["args"] else [payload]
        return Claimed(str(ids.read(job["id"])), args, job["attempt"])

    def is_given_nothing(self) -> bool:
        return self.http.poll(queues=[QUEUE]) == []

    def progress(self, job_id: str, share: float) -> bool:
        return self._taken(self.http.beat(job_id, progress=share))

    def complete(self, job_id: str) -> bool:
        return self._taken(self.http.ack(job_id))

    def fail(self, job_id: str, kind: str, message: str = BROKEN) -> bool:
        said = {"worker_id": self.id, "job_id": job_id, "status": "failed"}
        error = {"type": kind, "message": message}
        return self._taken(
            self.http.send("workers/ack", json.dumps(said | {"error": error}).encode())
        )

    def _taken(self, reply: Any) -> bool:
        assert reply.status_code in (200, 409), reply.content
        return bool(reply.status_code == 200)

    def still_holds(self, job_id: str) -> bool:
        reply = self.http.beat(job_id)
        return self._taken(reply) and reply.json()["status"] == "ok"


class AGQWorker(Worker):
    protocol = "agq"
    hears_directives = False

    def __init__(self, worker_id: str, port: int, key: str = "") -> None:
        super().__init__(worker_id)
        self.redis = redis.Redis(
            port=port,
            password=key or None,
            single_connection_client=True,
            decode_responses=True,
            socket_timeout=PATIENCE,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )

    def register(self) -> None:
        said = {
            "worker_id": self.id,
            "hostname": "box",
            "platform": "linux-amd64",
            "agw_version": "0.1.0",
            "capabilities": {"tools": ["sort"], "agentic_units": []},
            "max_concurrent_jobs": 10,
        }
        answer = self.redis.execute_command("WORKER.REGISTER", json.dumps(said))
        assert answer.startswith("OK"), answer

    def _pop(self, seconds: float) -> Any:
        found: Any = self.redis.brpop([f"queue:{QUEUE}"], seconds)
        return found and json.loads(found[1])

    def claim(self) -> Claimed:
        job = self._pop(PATIENCE / 2)
        return Claimed(job["job_id"], job["args"], job["attempt"])

    def is_given_nothing(self) -> bool:
        return self._pop(0.01) is None

    def progress(self, job_id: str, share: float) -> bool:
        return self._update(job_id, progress_percent=100 * share)

    def complete(self, job_id: str) -> bool:
        return self._update(job_id, status="completed")

    def fail(self, job_id: str, kind: str, message: str = BROKEN) -> bool:
        return self._update(job_id, status="failed", error={"type": kind, "message": message})

    def _update(self, job_id: str, **said: Any) -> bool:
        try:
            return bool(self.redis.execute_command("JOB.UPDATE", job_id, json.dumps(said)) == "OK")
        except redis.ResponseError as refusal:
            assert "cannot update job" in str(refusal), refusal
            return False

    def still_holds(self, job_id: str) -> bool:
        return self._update(job_id, status="running")

    def close(self) -> None:
        self.redis.close()


class RotaWorker(Worker):
    protocol = "rota"

    def __init__(
        self, worker_id: str, port: int, loop: asyncio.AbstractEventLoop, key: str = ""
    ) -> None:
        super().__init__(worker_id)
        self._loop = loop
        self._inbox: list[dict[str, Any]] = []
        self._received = 0
        url = f"ws://127.0.0.1:{port}/work"
        self._socket = self._wait(_opened(url, key))

    def _wait(self, coming: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coming, self._loop).result(PATIENCE)

    def _say(self, **message: Any) -> dict[str, Any]:
        """Send a heartbeat message; return the answer."""
        text = json.dumps({"type": "heartbeat", "received": self._received} | message)
        self._wait(self._socket.send(text))
        return self._hear("heartbeat")

    def _hear(self, kind: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next message of this kind; others are kept for later."""
        while True:
            for message in self._inbox:
                if message["type"] == kind:
                    self._inbox.remove(message)
                    return message
            text = self._wait(asyncio.wait_for(self._socket.recv(), seconds))
            self._inbox.append(json.loads(text))
            assert self._inbox[-1]["type"] != "error", text

    def register(self) -> None:
        specs = [{"id": name, "checksum": checksum} for name, checksum in SPECS.items()]
        said = {"worker_id": self.id, "hostname": "box", "queues": [QUEUE], "specs": specs}
        assert self._say(registration=said, wanted=0)["registered"] == self.id

    def claim(self) -> Claimed:
        self._say(wanted=1)
        job = self._hear("assignment")["job"]
        self._received += 1
        return Claimed(job["id"], job["args"], job["attempt"])

    def is_given_nothing(self) -> bool:
        self._say(wanted=1)
        try:
            self._hear("assignment", NOTHING_COMES)
        except TimeoutError:
            self._say(wanted=0)
            return True
        return False

    def progress(self, job_id: str, share: float) -> bool:
        answer = self._say(status={"jobs": [{"job_id": job_id, "progress": share}]})
        return job_id in answer["jobs_extended"]

    def complete(self, job_id: str) -> bool:
        return self._report(job_id, outcome="succeeded")

    def fail(self, job_id: str, kind: str, message: str = BROKEN) -> bool:
        error = {"type": kind, "message": message}
        return self._report(job_id, outcome="failed", error=error)

    def _report(self, job_id: str, **result: Any) -> bool:
        (answer,) = self._say(results=[{"job_id": job_id} | result])["results"]
        assert answer["ok"] or answer["error"]["code"] == "conflict", answer
        return bool(answer["ok"])

    def still_holds(self, job_id: str) -> bool:
        answer = self._say(status={"jobs": [{"job_id": job_id}]})
        assert (job_id in answer["jobs_extended"]) != (job_id in answer["jobs_lost"])
        return job_id in answer["jobs_extended"]

    def directive(self) -> str:
        return str(self._say()["state"])

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._socket.transport.abort)
        self._wait(self._socket.wait_closed())


async def _opened(url: str, key: str) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return await websockets.connect(url, additional_headers=headers, proxy=None)


class Enqueued(NamedTuple):
    id: str
    args: list[Any]
    ended: Callable[[], Any]
    """The name of the job's state in the producer's protocol."""


def over_ojs(port: int) -> Enqueued:
    http, args = OJSClient(), [{"to": "ada"}, 2]
    job_id = http.pushed(type=TYPE, args=args, queue=QUEUE)
    return Enqueued(job_id, args, lambda: http.job(job_id)["state"] == "completed")


def over_flare(port: int) -> Enqueued:
    http = FlareClient()
    name = http.enqueued(job_type=TYPE, payload={"to": "ada"}, queue=QUEUE)
    job_id = str(ids.read(name))
    return Enqueued(job_id, [{"to": "ada"}], lambda: http.job(name)["status"] == "succeeded")


def over_agq(port: int) -> Enqueued:
    job_id = str(uuid7())
    document = {"plan": {"to": "ada"}, "inputs": [1], "type": TYPE, "job_id": job_id}
    with redis.Redis(port=port, decode_responses=True, socket_timeout=PATIENCE) as client:
        assert client.lpush(f"queue:{QUEUE}", json.dumps(document)) == 1
    return Enqueued(job_id, [{"to": "ada"}, [1]], lambda: _is_completed(job_id))


def over_django(port: int) -> Enqueued:
    job_id = str(jobs.enqueue(TYPE, [{"to": "ada"}], queue=QUEUE).id)
    return Enqueued(job_id, [{"to": "ada"}], lambda: _is_completed(job_id))


def _is_completed(job_id: str) -> bool:
    return Job.objects.get(pk=UUID(job_id)).state == "completed"


# Rota is only for workers: it cannot enqueue.
PRODUCERS = {"ojs": over_ojs, "flare": over_flare, "agq": over_agq, "django": over_django}
PROTOCOLS = ("ojs", "flare", "agq", "rota")
