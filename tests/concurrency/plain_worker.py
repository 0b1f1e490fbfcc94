"""A worker written only from the protocol document, which never deregisters.

    python plain_worker.py URL WORKER_ID

Jobs of type `hang` hang on their first attempt; anything else is done at once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

BEAT_EVERY = 0.2
IDLE = 0.05

url, worker_id = sys.argv[1:3]
active: set[str] = set()
pause = threading.Event()


def post(path: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/ojs/v1/workers/{path}",
        json.dumps({"worker_id": worker_id, **body}).encode(),
        {"Content-Type": "application/openjobspec+json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        document: dict[str, Any] = json.load(reply)
        return document


def send_heartbeats() -> None:
    while True:
        ids = sorted(active)
        post("heartbeat", state="running", active_jobs=len(ids), active_job_ids=ids)
        pause.wait(BEAT_EVERY)


def main() -> None:
    post(
        "register",
        hostname=socket.gethostname(),
        pid=os.getpid(),
        queues=["default"],
        concurrency=2,
    )
    threading.Thread(target=send_heartbeats, daemon=True).start()
    while True:
        jobs = post("fetch", queues=["default"], count=2)["jobs"]
        active.update(job["id"] for job in jobs)
        for job in jobs:
            if job["type"] == "hang" and job["attempt"] == 1:
                pause.wait()
            post("ack", job_id=job["id"], attempt=job["attempt"], result=worker_id)
            active.discard(job["id"])
        if not jobs:
            pause.wait(IDLE)


if __name__ == "__main__":
    main()
