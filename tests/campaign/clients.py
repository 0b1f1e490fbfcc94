"""Workers of three protocols as their documents describe them: `python -m … agq|rota|flare`.

Each runs forever, reconnects when necessary, and repeats a report until it is answered. It writes
the jobs that it gets and its own actions into its ledger before any other process can know.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

from .site.campaign_site import ledger

QUEUE = "campaign"
TYPE = "campaign.job"
CHECKSUM = "v1"
PAUSE = 0.3
PATIENCE = 5
"""Seconds to wait for an answer."""
KEY = os.environ.get("CAMPAIGN_KEY", "")


def say(*words: object) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S.%f}", *words, file=sys.stderr, flush=True)


class Sign:
    """Log, at most twice a second, that this worker got a response without a job."""

    def __init__(self, book: ledger.Ledger) -> None:
        self.book = book
        self._last = 0.0

    def heard(self) -> None:
        if time.monotonic() - self._last > 0.5:
            self._last = time.monotonic()
            self.book.write("heard", "-")


def outcome_of(work: dict[str, Any], attempt: int) -> str:
    return "failed" if work["fails"] and attempt == 1 else "finished"


class AGQ:
    """One job after the other; heartbeats on a separate connection."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        # Its id is that of its place, like a host's name: a new process takes it over.
        self.id = options.id.partition(".")[0]
        self.book = ledger.of_worker(options.id)
        self.sign = Sign(self.book)
        self.known = threading.Event()

    def connect(self) -> Any:
        import redis

        return redis.Redis(
            host=self.options.host,
            port=self.options.port,
            password=KEY or None,
            single_connection_client=True,
            socket_timeout=PATIENCE,
            socket_connect_timeout=5,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )

    def beat(self) -> None:
        import redis

        while True:
            with contextlib.suppress(redis.RedisError, OSError):
                connection = self.connect()
                while True:
                    self.known.wait()
                    connection.execute_command("WORKER.HEARTBEAT", self.id)
                    time.sleep(self.options.beat)
            time.sleep(PAUSE)

    def run(self) -> None:
        import redis

        threading.Thread(target=self.beat, daemon=True).start()
        owed: tuple[str, int, str] | None = None
        while True:
            try:
                connection = self.connect()
                self.register(connection)
                while True:
                    if owed:
                        self.report(connection, *owed)
                        owed = None
                    if pulled := connection.brpop([f"queue:{QUEUE}"], 2):
                        owed = self.perform(json.loads(pulled[1]))
                    else:
                        self.sign.heard()
            except (redis.RedisError, OSError) as problem:
                say(type(problem).__name__, problem)
                self.known.clear()
                time.sleep(PAUSE)

    def register(self, connection: Any) -> None:
        said = {
            "worker_id": self.id,
            "hostname": "campaign",
            "agw_version": "1",
            "capabilities": {"tools": ["jq"], "agentic_units": []},
        }
        connection.execute_command("WORKER.REGISTER", json.dumps(said))
        self.known.set()

    def perform(self, job: dict[str, Any]) -> tuple[str, int, str]:
        job_id, attempt, work = job["job_id"], job["attempt"], job["args"][0]
        self.book.write("started", job_id, attempt, self.options.id)
        time.sleep(work["seconds"])
        outcome = outcome_of(work, attempt)
        self.book.write(outcome, job_id, attempt, self.options.id)
        return job_id, attempt, outcome

    def report(self, connection: Any, job_id: str, attempt: int, outcome: str) -> None:
        import redis

        said: dict[str, Any] = {"status": "completed", "task_results": []}
        if outcome == "failed":
            said = {"status": "failed", "error": {"type": "Planned", "message": "as planned"}}
        try:
            connection.execute_command("JOB.UPDATE", job_id, json.dumps(said))
        except redis.ResponseError as refusal:
            if "cannot update job" not in str(refusal):
                raise
            self.book.write("refused", job_id, attempt, self.options.id)
            return
        self.book.write("acked" if outcome == "finished" else "nacked", job_id, attempt)


class Flare:
    def __init__(self, options: argparse.Namespace) -> None:
        import httpx

        self.options = options
        self.book = ledger.of_worker(options.id)
        self.sign = Sign(self.book)
        self.me = {"worker_id": f"wrk_{options.id}"}
        self.http = httpx.Client(
            base_url=f"{options.url}/flare/v1/workers",
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=PATIENCE,
        )

    def call(self, path: str, **body: Any) -> Any:
        """Repeat a command until there is a conclusive answer."""
        import httpx

        while True:
            try:
                reply = self.http.post(path, json=self.me | body)
                if reply.status_code < 500 and reply.status_code != 429:
                    return reply
                problem = f"{reply.status_code} {reply.text[:200]}"
            except httpx.HTTPError as trouble:
                problem = f"{type(trouble).__name__} {trouble}"
            say(path, problem)
            time.sleep(PAUSE)

    def run(self) -> None:
        self.call("/register", queues=[QUEUE], job_types=[TYPE])
        while True:
            reply = self.call("/poll", queues=[QUEUE], capacity=2)
            jobs = reply.json()["jobs"] if reply.status_code == 200 else []
            # The worker holds all of them from now on, including those whose turn comes later.
            for job in jobs:
                self.perform(job)
            if not jobs:
                if reply.status_code == 200:
                    self.sign.heard()
                time.sleep(PAUSE)

    def perform(self, job: dict[str, Any]) -> None:
        job_id, attempt, payload = uuid_of(job["id"]), job["attempt"], job["payload"]
        work = payload["args"][0] if "args" in payload else payload
        self.book.write("started", job_id, attempt, self.options.id)
        time.sleep(work["seconds"])
        outcome = outcome_of(work, attempt)
        self.book.write(outcome, job_id, attempt, self.options.id)
        said: dict[str, Any] = {"job_id": job["id"], "status": "succeeded"}
        if outcome == "failed":
            said["status"] = "failed"
            said["error"] = {"type": "Planned", "message": "as planned"}
        reply = self.call("/ack", **said)
        if reply.status_code == 200:
            done = "acked" if outcome == "finished" else "nacked"
            self.book.write(done, job_id, attempt, self.options.id)
        else:
            self.book.write("refused", job_id, attempt, self.options.id)


CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def uuid_of(name: str) -> str:
    """The UUID that `job_` and 26 characters of Crockford's base 32 spell."""
    number = 0
    for letter in name.removeprefix("job_").lower():
        number = number * 32 + CROCKFORD.index(letter)
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Rota:
    """Several jobs at once; finished jobs are reported again after a lost connection."""

    SLOTS = 4

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.book = ledger.of_worker(options.id)
        self.started_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        self.running: dict[str, asyncio.Task[None]] = {}
        self.owed: dict[str, dict[str, Any]] = {}
        self.news = asyncio.Event()

    async def run(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        url = f"ws://{self.options.host}:{self.options.port}/work"
        header = {"Authorization": f"Bearer {KEY}"}
        while True:
            try:
                async with connect(url, additional_headers=header, proxy=None) as socket:
                    await self.serve(socket)
            except (OSError, WebSocketException, TimeoutError) as problem:
                say(type(problem).__name__, problem)
            await asyncio.sleep(PAUSE)

    def registration(self) -> dict[str, Any]:
        who = {
            "worker_id": self.options.id.partition(".")[0],
            "hostname": "campaign",
            "pid": os.getpid(),
            "started_at": self.started_at,
            "queues": [QUEUE],
            "concurrency": self.SLOTS,
            "specs": [{"id": TYPE, "checksum": CHECKSUM}],
        }
        held = [{"job_id": name} for name in [*self.running, *self.owed]]
        return {"registration": who, "status": {"jobs": held}}

    async def serve(self, socket: Any) -> None:
        received = 0

        async def speak() -> None:
            said: set[tuple[str, int]] = set()
            more = self.registration()
            while True:
                self.news.clear()
                # Once on each connection; a job may return as another attempt.
                results = [result for result in self.owed.values() if key_of(result) not in said]
                said.update(map(key_of, results))
                if results:
                    more = more | {"results": results}
                wanted = self.SLOTS - len(self.running)
                beat = {"type": "heartbeat", "wanted": wanted, "received": received}
                await socket.send(json.dumps(beat | more))
                more = {}
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.news.wait(), 1)

        speaking = asyncio.create_task(speak())
        try:
            while True:
                # The answer to the heartbeat of a second ago, at the latest.
                message = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
                if message["type"] == "assignment":
                    received += 1
                    job = message["job"]
                    self.running[job["id"]] = asyncio.create_task(self.perform(job))
                elif message["type"] == "error":
                    say(message)
                for answer in message.get("results", ()):
                    self.answered(answer)
        finally:
            speaking.cancel()
            with contextlib.suppress(BaseException):
                await speaking

    def answered(self, answer: dict[str, Any]) -> None:
        result = self.owed.get(answer["job_id"])
        if result is None:
            return
        if not answer["ok"] and answer["error"].get("code") not in ("conflict", "not_found"):
            say(answer)
        del self.owed[answer["job_id"]]
        done = "acked" if result["outcome"] == "succeeded" else "nacked"
        what = done if answer["ok"] else "refused"
        self.book.write(what, answer["job_id"], result["attempt"], self.options.id)

    async def perform(self, job: dict[str, Any]) -> None:
        job_id, attempt, work = job["id"], job["attempt"], job["args"][0]
        self.book.write("started", job_id, attempt, self.options.id)
        await asyncio.sleep(work["seconds"])
        outcome = outcome_of(work, attempt)
        self.book.write(outcome, job_id, attempt, self.options.id)
        result: dict[str, Any] = {"job_id": job_id, "attempt": attempt, "outcome": "succeeded"}
        if outcome == "failed":
            result["outcome"] = "failed"
            result["error"] = {"type": "Planned", "message": "as planned"}
        self.owed[job_id] = result
        del self.running[job_id]
        self.news.set()


def key_of(result: dict[str, Any]) -> tuple[str, int]:
    return result["job_id"], result["attempt"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protocol", choices=("agq", "rota", "flare"))
    parser.add_argument("--id", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--url", default="")
    parser.add_argument("--beat", type=float, default=1)
    options = parser.parse_args()
    if options.protocol == "agq":
        AGQ(options).run()
    elif options.protocol == "flare":
        Flare(options).run()
    else:
        asyncio.run(Rota(options).run())


if __name__ == "__main__":
    main()
