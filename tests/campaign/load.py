"""Producers: over HTTP, Flare and AGQ from here, and from a Django process in its own transaction.

Each records only the ids whose enqueue was confirmed. A request that got an error or no response
is not retried with the same id: the job may or may not exist.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from jobs.spec.identifiers import uuid7

from .account import Ledgers
from .cast import VISIBILITY, Cast
from .clients import uuid_of
from .site.campaign_site.ledger import Ledger
from .site.campaign_site.work import work

QUEUE, TYPE = "campaign", "campaign.job"
PAUSE = 0.2
PATIENCE = 5
"""Seconds to wait for an answer."""
RETRY = {"max_attempts": 100, "initial_interval": "PT0.2S"}
TRICKLE = 8
"""Waiting jobs in all while only signs of life are needed."""
KINDS = ("http", "flare", "agq", "django")


class Load:
    """Producers that run until they are stopped: a trickle, and for a while a stream.

    The trickle shows at each moment which processes work; the stream is the actual work.

    Args:
        jobs: how many are to be confirmed in the stream, spread over `seconds`.
        backlog: how many may wait, so that every disturbance affects each of them.
    """

    def __init__(
        self,
        cast: Cast,
        ledgers: Ledgers,
        *,
        jobs: int,
        seconds: float,
        backlog: int = 500,
        kinds: tuple[str, ...] = KINDS,
        seed: str = "",
    ) -> None:
        self.cast = cast
        self.ledgers = ledgers
        self.jobs = jobs
        self.seconds = seconds
        self.backlog = backlog
        self.kinds = kinds
        self.chance = random.Random(seed)
        self.errors: Counter[str] = Counter()
        self.servers = ["server-1", "server-2"]
        self.ended = threading.Event()
        self._stream: tuple[float, int] | None = None
        """When the stream began, and how many were confirmed before."""
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Load:
        self._tell()
        for kind in self.kinds:
            if kind == "django":
                given = ["--visibility-timeout", str(VISIBILITY)]
                self.cast.add_command("django", "campaignenqueue", *given)
                continue
            send = getattr(self, f"_over_{kind}")
            thread = threading.Thread(target=self._produce, args=[kind, send], daemon=True)
            self._threads.append(thread)
        self._threads.append(threading.Thread(target=self._keep_reading, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end()

    def stream(self) -> None:
        """Start the stream."""
        self._stream = (time.monotonic(), self.confirmed)
        # Refusals before the server was up are of no interest.
        self.errors.clear()

    def end(self) -> None:
        """Stop enqueueing; return once all have stopped."""
        self.ended.set()
        for thread in self._threads:
            thread.join(30)
        if "django" in self.cast.members:
            self.cast.members["django"].close()

    @property
    def confirmed(self) -> int:
        return self.ledgers.counts["enqueued"]

    @property
    def streamed(self) -> int:
        """How many of the stream are confirmed."""
        return self.confirmed - self._stream[1] if self._stream else 0

    @property
    def done(self) -> bool:
        """Whether the stream has run dry."""
        return self._stream is not None and self.streamed >= self.jobs

    @property
    def wanted(self) -> int:
        """How many jobs each producer may enqueue now."""
        waiting = self.confirmed - self.ledgers.counts["finished"]
        if waiting > self.backlog:
            return 0
        if self._stream is None or self.done:
            return 1 if waiting < TRICKLE else 0
        began, before = self._stream
        due = self.jobs * (time.monotonic() - began) / self.seconds
        missing = min(self.jobs, due) - (self.confirmed - before)
        return max(0, min(20, int(missing) + 1))

    def _tell(self) -> None:
        draft = self.cast.ledgers / "wanted.new"
        draft.write_text(str(0 if self.ended.is_set() else self.wanted))
        draft.rename(self.cast.ledgers / "wanted")

    def _keep_reading(self) -> None:
        while not self.ended.wait(0.1):
            self.ledgers.read()
            self._tell()

    def _produce(self, kind: str, send: Callable[[int], list[str]]) -> None:
        book = Ledger(self.cast.ledgers / f"enqueued-{kind}.txt")
        while not self.ended.is_set():
            wanted = self.wanted
            if not wanted:
                self.ended.wait(PAUSE)
                continue
            try:
                ids = send(1 if kind == "flare" else self.chance.randint(1, wanted))
                book.write_all("enqueued", ids)
            except Exception as problem:
                self.errors[f"{kind}: {type(problem).__name__} {str(problem)[:80]}"] += 1
                self.ended.wait(PAUSE)
            if wanted < 5:
                self.ended.wait(PAUSE)

    def _client(self) -> httpx.Client:
        return httpx.Client(headers={"Authorization": f"Bearer {self.cast.key}"}, timeout=PATIENCE)

    def _over_http(self, count: int) -> list[str]:
        self._http = getattr(self, "_http", None) or self._client()
        options = {
            "queue": QUEUE,
            "visibility_timeout_ms": VISIBILITY * 1000,
            "retry": RETRY,
        }
        jobs = [
            {"type": TYPE, "args": [work(self.chance)], "options": options} for _ in range(count)
        ]
        base = f"{self.cast.url_of(self.chance.choice(self.servers))}/ojs/v1/jobs"
        if count == 1:
            reply = self._http.post(base, json=jobs[0])
        else:
            reply = self._http.post(f"{base}/batch", json={"jobs": jobs})
        if reply.status_code not in (200, 201):
            raise ValueError(f"{reply.status_code} {reply.text[:60]}")
        document = reply.json()
        return [job["id"] for job in document.get("jobs", [document.get("job")])]

    def _over_flare(self, count: int) -> list[str]:
        self._flare = getattr(self, "_flare", None) or self._client()
        base = self.cast.url_of(self.chance.choice(self.servers))
        body = {
            "job_type": TYPE,
            "payload": work(self.chance),
            "queue": QUEUE,
            "max_attempts": 20,
            "timeout_seconds": VISIBILITY,
        }
        reply = self._flare.post(f"{base}/flare/v1/jobs", json=body)
        if reply.status_code != 201:
            raise ValueError(f"{reply.status_code} {reply.text[:60]}")
        return [uuid_of(reply.json()["id"])]

    def _over_agq(self, count: int) -> list[str]:
        import redis

        if getattr(self, "_redis", None) is None:
            self._redis: Any = redis.Redis(
                port=self.cast.ports["agq"],
                password=self.cast.key,
                socket_timeout=PATIENCE,
                single_connection_client=True,
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
        ids = [str(uuid7()) for _ in range(count)]
        plans = [
            {
                "plan": work(self.chance),
                "inputs": {},
                "type": TYPE,
                "job_id": one,
                "visibility_timeout_ms": VISIBILITY * 1000,
                "retry": RETRY,
            }
            for one in ids
        ]
        try:
            self._redis.lpush(f"queue:{QUEUE}", *map(json.dumps, plans))
        except Exception:
            with contextlib.suppress(Exception):
                self._redis.close()
            self._redis = None
            raise
        return ids
