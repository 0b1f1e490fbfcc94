"""A Flare worker over HTTP: Django's test client for `/flare/v1`."""

from __future__ import annotations

from typing import Any

import orjson
from django.test import Client

WORKER = "wrk_prod-host-01_12345_a1b2c3d4"


class FlareClient(Client):
    """`flare.poll(capacity=5)`; all replies but those of `poll` are `HttpResponse`s."""

    def __init__(self, key: str = "", worker_id: str = WORKER) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(raise_request_exception=False, headers=headers)
        self.worker_id = worker_id

    def send(self, path: str, body: Any) -> Any:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        return self.post(f"/flare/v1/{path}", data=data, content_type="application/json")

    def register(self, **body: Any) -> Any:
        said = {"worker_id": self.worker_id, "queues": ["default"], "job_types": ["email.send"]}
        return self.send("workers/register", said | body)

    def poll_reply(self, **body: Any) -> Any:
        said = {"worker_id": self.worker_id, "queues": ["default"]}
        return self.send("workers/poll", said | body)

    def poll(self, **body: Any) -> list[dict[str, Any]]:
        reply = self.poll_reply(**body)
        assert reply.status_code == 200, reply.content
        jobs: list[dict[str, Any]] = reply.json()["jobs"]
        return jobs

    def ack(self, job_id: str, /, **body: Any) -> Any:
        said = {"worker_id": self.worker_id, "job_id": job_id, "status": "succeeded"}
        return self.send("workers/ack", said | body)

    def fail(self, job_id: str, /, **error: Any) -> Any:
        said = {"type": "System.Net.Http.HttpRequestException", "message": "Connection refused"}
        return self.ack(job_id, status="failed", duration_ms=503, error=said | error)

    def beat(self, job_id: str, /, **body: Any) -> Any:
        return self.send(
            "workers/heartbeat", {"worker_id": self.worker_id, "job_id": job_id} | body
        )

    def enqueue(self, **body: Any) -> Any:
        return self.send("jobs", {"job_type": "email.send"} | body)

    def enqueued(self, **body: Any) -> str:
        """Enqueue a valid job; return its id."""
        reply = self.enqueue(**body)
        assert reply.status_code == 201, reply.content
        return str(reply.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        reply = self.get(f"/flare/v1/jobs/{job_id}")
        assert reply.status_code == 200, reply.content
        document: dict[str, Any] = reply.json()
        return document

    def cancel(self, job_id: str) -> Any:
        return self.send(f"jobs/{job_id}/cancel", {})


def refusal(reply: Any) -> tuple[int, str]:
    """Return the status and the code of a refused request."""
    error = reply.json()["error"]
    assert error.keys() == {"code", "message", "retryable", "details", "request_id"}
    assert isinstance(error["message"], str) and error["message"]
    assert reply.headers["Content-Type"] == "application/json"
    return reply.status_code, error["code"]
