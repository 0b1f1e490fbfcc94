"""The public Python, JavaScript, Go and Ruby SDKs, as seen from a server.

Each has only its characteristics: its headers, the bodies it builds, and how strictly it reads
responses.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.test import Client

from jobs.spec.identifiers import uuid7
from jobs.spec.retry import RetryPolicy

OJS = "application/openjobspec+json"
STATES = {"running", "quiet", "terminate"}
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Sdk:
    """Common to all four: they send `OJS-Version` and our media type."""

    name = ""
    version = "1.0"
    worker_id = "worker_0194"

    def __init__(self) -> None:
        self.http = Client(raise_request_exception=False)

    def headers(self) -> dict[str, str]:
        return {"Accept": OJS, "OJS-Version": self.version, "X-Request-ID": str(uuid4())}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request as this client does; return the response as it reads it."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = self.headers()
        reply = self.http.generic(
            method, f"/ojs/v1/{path}", data, content_type=self.content_type(body), headers=headers
        )
        if "X-Request-ID" in headers:
            assert reply.headers["X-Request-ID"] == headers["X-Request-ID"]
        return self.read(reply)

    def content_type(self, body: Any) -> str:
        return OJS

    def read(self, reply: Any) -> Any:
        assert reply.status_code in (200, 201), (reply.status_code, reply.content)
        return reply.json()

    # The envelope that most of them read

    def job_of(self, body: Any) -> dict[str, Any]:
        job: dict[str, Any] = body["job"]
        self.check(job)
        return job

    def check(self, job: dict[str, Any]) -> None:
        """Check for anything that this client cannot read."""

    # Requests

    def enqueue(self, **options: Any) -> dict[str, Any]:
        raise NotImplementedError

    def fetch(self) -> list[dict[str, Any]]:
        body = {"queues": ["default"], "count": 1, "worker_id": self.worker_id}
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        for job in jobs:
            self.check(job)
        return jobs

    def ack(self, job_id: str, result: Any) -> None:
        self.call("POST", "workers/ack", {"job_id": job_id, "result": result})

    def nack(self, job_id: str, code: str, **error: Any) -> None:
        failed = {"code": code, "message": "It broke."} | error
        self.call("POST", "workers/nack", {"job_id": job_id, "error": failed})

    def beat(self, *active: str) -> str:
        raise NotImplementedError

    def info(self, job_id: str) -> dict[str, Any]:
        return self.job_of(self.call("GET", f"jobs/{job_id}"))

    def cancel(self, job_id: str) -> dict[str, Any]:
        return self.job_of(self.call("DELETE", f"jobs/{job_id}"))


class Python(Sdk):
    name = "python"

    def read(self, reply: Any) -> Any:
        # Anything else becomes {"_raw": …}, and every key is missing.
        assert "application/json" in reply.headers["Content-Type"]
        return super().read(reply)

    def check(self, job: dict[str, Any]) -> None:
        # get("meta", {}) and the like only cover absence.
        assert None not in [job.get(name, ()) for name in ("meta", "tags", "args", "errors")]

    def enqueue(self, **options: Any) -> dict[str, Any]:
        retry = {
            "max_attempts": 3,
            "initial_interval": "PT0.2S",
            "backoff_coefficient": 2.0,
            "max_interval": "PT5M",
            "jitter": False,
        }
        body = {
            "type": "email.send",
            "args": ["user@example.com"],
            "meta": {"trace": "t"},
            "options": {"retry": retry, "priority": 0, "timeout_ms": 30_000, "tags": ["a"]}
            | options,
        }
        return self.job_of(self.call("POST", "jobs", body))

    def fetch(self) -> list[dict[str, Any]]:
        body = {
            "queues": ["default"],
            "count": 1,
            "worker_id": self.worker_id,
            "visibility_timeout_ms": 30_000,
        }
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        for job in jobs:
            self.check(job)
        return jobs

    def beat(self, *active: str) -> str:
        body = {
            "worker_id": self.worker_id,
            "active_jobs": list(active),
            "visibility_timeout_ms": 30_000,
        }
        state = self.call("POST", "workers/heartbeat", body)["state"]
        assert state in STATES  # any other raises
        return str(state)


class JavaScript(Sdk):
    name = "javascript"

    def enqueue(self, **options: Any) -> dict[str, Any]:
        body = {
            "type": "email.send",
            "args": [{"to": "user@example.com"}],
            "options": {
                "queue": "default",
                "visibility_timeout_ms": 60_000,
                "retry": {
                    "maxAttempts": 3,
                    "initialInterval": "PT0.2S",
                    "backoffCoefficient": 2,
                    "jitter": False,
                },
            }
            | options,
        }
        return self.job_of(self.call("POST", "jobs", body))

    def fetch(self) -> list[dict[str, Any]]:
        body = {
            "queues": ["default"],
            "count": 10,
            "worker_id": self.worker_id,
            "visibility_timeout_ms": 30_000,
        }
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        # It would read `timeout`, which is in seconds, as milliseconds and abort the handler.
        assert all("timeout" not in job for job in jobs)
        return jobs

    def beat(self, *active: str) -> str:
        body = {
            "worker_id": self.worker_id,
            "state": "running",
            "active_jobs": len(active),
            "active_job_ids": list(active),
            "hostname": "host-1",
            "pid": 4711,
            "queues": ["default"],
            "concurrency": 10,
            "labels": ["blue"],
        }
        return str(self.call("POST", "workers/heartbeat", body)["state"])


class Go(Sdk):
    """Decodes into structs: a single value of another type makes the whole response an error."""

    name = "go"
    version = "1.0.0-rc.1"
    INTEGERS = ("priority", "attempt", "max_attempts", "timeout_ms")
    TIMES = (
        "created_at",
        "enqueued_at",
        "started_at",
        "completed_at",
        "scheduled_at",
        "expires_at",
        "cancelled_at",
        "discarded_at",
        "next_attempt_at",
    )

    def headers(self) -> dict[str, str]:
        return {"Accept": OJS, "OJS-Version": self.version}

    def content_type(self, body: Any) -> str:
        return "" if body is None else OJS

    def check(self, job: dict[str, Any]) -> None:
        for name in ("id", "type", "state", "queue", "specversion"):
            assert type(job[name]) is str
        for name in self.INTEGERS:
            assert type(job.get(name, 0)) is int, name
        for name in self.TIMES:
            assert job.get(name) is None or RFC_3339.fullmatch(job[name]), name
        assert type(job["args"]) is list
        assert type(job["meta"]) is dict
        assert all(type(tag) is str for tag in job["tags"])
        assert type(job.get("result", {})) is dict
        for error in [*job.get("errors", []), *([job["error"]] if "error" in job else [])]:
            assert (type(error["code"]), type(error["message"])) == (str, str)
            assert type(error.get("details", {})) is dict
            assert type(error.get("retryable", True)) is bool

    def enqueue(self, **options: Any) -> dict[str, Any]:
        body = {
            "type": "email.send",
            "args": [{"to": "user@example.com"}],
            "options": {
                "queue": "default",
                "retry": {
                    "max_attempts": 3,
                    "initial_interval_ms": 200,
                    "backoff_coefficient": 2,
                    "max_interval_ms": 300_000,
                    "jitter": False,
                },
            }
            | options,
        }
        return self.job_of(self.call("POST", "jobs", body))

    def beat(self, *active: str) -> str:
        body = {
            "worker_id": self.worker_id,
            "state": "running",
            "active_jobs": len(active),
            "active_job_ids": list(active),
        }
        return str(self.call("POST", "workers/heartbeat", body)["state"])


class Ruby(Sdk):
    """Sends the envelope flat, and reads it flat."""

    name = "ruby"

    def job_of(self, body: Any) -> dict[str, Any]:
        self.check(body)
        job: dict[str, Any] = body
        return job

    def check(self, job: dict[str, Any]) -> None:
        retry = RetryPolicy.parse(job.get("retry"))
        assert retry.max_attempts >= 1  # each of these raises ArgumentError
        assert retry.backoff_coefficient >= 1.0
        assert retry.on_exhaustion in ("discard", "dead_letter")
        assert set((job.get("unique") or {}).get("keys", [])) <= {"type", "queue", "args", "meta"}
        for name in ("created_at", "enqueued_at"):
            datetime.fromisoformat(job[name])

    def enqueue(self, **options: Any) -> dict[str, Any]:
        body = {
            "specversion": "1.0",
            "id": str(uuid7()),
            "type": "email.send",
            "queue": "default",
            "args": ["user@example.com"],
            "meta": {},
            "priority": 0,
            "timeout": 30,
            "retry": {"max_attempts": 3, "initial_interval": "PT0.2S", "jitter": False},
        } | options
        job = self.job_of(self.call("POST", "jobs", body))
        assert job["id"] == body["id"]
        return job

    def fetch(self) -> list[dict[str, Any]]:
        body = {"queues": ["default"], "batch_size": 1}
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        for job in jobs:
            self.check(job)
        return jobs

    def beat(self, *active: str) -> str:
        body = {"worker_id": self.worker_id, "active_jobs": list(active)}
        return str(self.call("POST", "workers/heartbeat", body)["state"])
