"""A producer and worker over HTTP: Django's test client for OJS.

A bug in the server raises nothing here: the response is a 500, as for any client.
"""

from __future__ import annotations

from typing import Any

import orjson
from django.test import Client

from tests import described

MEDIA_TYPE = "application/openjobspec+json"
V1 = "/ojs/v1"
POSTS = [
    "jobs",
    "jobs/batch",
    "jobs/fetch",
    "workers/register",
    "workers/deregister",
    "workers/heartbeat",
    "workers/beat",
    "workers/fetch",
    "workers/ack",
    "workers/nack",
    "workers/fail",
]
"""Endpoints that workers and producers post to, below `V1`."""


class OJSClient(Client):
    """`api.push(type="email.send")`, `api.fetch("default")`; all replies are `HttpResponse`s."""

    def __init__(self, key: str = "", **headers: str) -> None:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        super().__init__(raise_request_exception=False, headers=headers)

    def request(self, **request: Any) -> Any:
        reply = super().request(**request)
        described.check(request.get("REQUEST_METHOD", "GET"), reply)
        return reply

    def send(
        self, path: str, body: Any = None, content_type: str = MEDIA_TYPE, **extra: Any
    ) -> Any:
        """POST `body`: bytes as they are, anything else as JSON, None as no body at all."""
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        return self.post(f"{V1}/{path}", data=data, content_type=content_type, **extra)

    def see(self, path: str, **parameters: Any) -> Any:
        return self.get(f"{V1}/{path}", data=parameters)

    def push(self, **job: Any) -> Any:
        return self.send("jobs", {"type": "email.send", "args": []} | job)

    def pushed(self, **job: Any) -> str:
        """Enqueue a valid job; return its id."""
        reply = self.push(**job)
        assert reply.status_code == 201, reply.content
        return str(reply.json()["job"]["id"])

    def job(self, job_id: Any) -> dict[str, Any]:
        reply = self.see(f"jobs/{job_id}")
        assert reply.status_code == 200, reply.content
        document: dict[str, Any] = reply.json()["job"]
        return document

    def fetch(self, *queues: str, **body: Any) -> list[dict[str, Any]]:
        reply = self.send("workers/fetch", {"queues": list(queues or ["default"])} | body)
        assert reply.status_code == 200, reply.content
        jobs: list[dict[str, Any]] = reply.json()["jobs"]
        return jobs

    def ack(self, job_id: Any, **body: Any) -> Any:
        return self.send("workers/ack", {"job_id": str(job_id)} | body)

    def nack(self, job_id: Any, **error: Any) -> Any:
        failed = {"code": "handler_error", "message": "It broke."} | error
        return self.send("workers/nack", {"job_id": str(job_id), "error": failed})


SPELLED_LARGE = {
    "BATCH_SIZE_EXCEEDED",
    "EXTENSION_NOT_SUPPORTED",
    "JOB_TYPE_NOT_ALLOWED",
    "QUEUE_FULL",
    "TENANT_LIMIT_EXCEEDED",
}
"""Codes that no binding lists, spelled as in their extensions."""


def refusal(reply: Any) -> dict[str, Any]:
    """Return the error of a refused request, after checking that it has the OJS form (§16.1)."""
    assert 400 <= reply.status_code < 500, (reply.status_code, reply.content[:300])
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == error["code"].lower() or error["code"] in SPELLED_LARGE
    assert isinstance(error["message"], str) and error["message"]
    assert error["retryable"] is False
    assert isinstance(error["details"], dict)
    assert error["request_id"] == reply.headers["X-Request-Id"]
    assert reply.headers["OJS-Version"] == "1.0"
    assert reply.headers["Content-Type"].startswith("application/")
    return error
