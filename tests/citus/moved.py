"""A cell is moved to another node under load, and every job is accounted for."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any

from tests import processes
from tests.campaign.surroundings import Postgres
from tests.processes import Api

from .cluster import Cell


class Load:
    """Producers and workers, each with a ledger of what was confirmed."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.enqueued: set[str] = set()
        self.completed: list[str] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._produce, self._produce, self._work, self._work)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(processes.PATIENCE)

    def _call(self, path: str, body: Any) -> dict[str, Any] | None:
        try:
            status, reply = self.api.call("POST", f"/ojs/v1/{path}", body)
        except OSError as problem:
            self.errors.append(str(problem))
            return None
        if status >= 300:
            self.errors.append(json.dumps(reply))
            return None
        return reply

    def _produce(self) -> None:
        while not self._stop.wait(0.5):
            reply = self._call("jobs/batch", {"jobs": [{"type": "a", "args": []}] * 5})
            if reply is not None:
                self.enqueued.update(job["id"] for job in reply["jobs"])

    def _work(self) -> None:
        name = threading.current_thread().name
        while not self._stop.is_set():
            body = {"queues": ["default"], "count": 20, "worker_id": name}
            reply = self._call("workers/fetch", body)
            for job in reply["jobs"] if reply else ():
                if self._call("workers/ack", {"job_id": job["id"], "worker_id": name}):
                    self.completed.append(job["id"])


def move(cell: Cell, api: Api, nodes: list[Postgres], seconds: float) -> bool:
    """Return whether nothing that was confirmed is lost."""
    before, target = cell.port, cell.other_node(nodes)
    with Load(api) as load:
        time.sleep(seconds)
        took = cell.move(target)
        time.sleep(seconds)
    assert cell.port == target.port
    with cell.connect() as connection:
        rows = connection.execute("SELECT id::text, state FROM ojs_jobs_job WHERE type = 'a'")
        states: dict[str, str] = dict(rows.fetchall())
    lost = load.enqueued - states.keys()
    forgotten = [job for job in load.completed if states.get(job) != "completed"]
    print(
        f"Moved from port {before} to {target.port} in {took:.1f} s: {len(load.enqueued)} jobs "
        f"confirmed, {len(load.completed)} completed, states {dict(Counter(states.values()))}, "
        f"{len(lost)} lost, {len(forgotten)} completions lost, {len(load.errors)} requests refused."
    )
    for error in sorted(set(load.errors))[:5]:
        print(f"  {error[:300]}")
    return not lost and not forgotten
