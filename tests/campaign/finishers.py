"""Part d: two workers finish one job at the same moment, and only one may succeed."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import httpx

from tests.processes import Api, eventually

from .account import EXAMPLES, Account
from .cast import Cast
from .clients import CHECKSUM, TYPE, uuid_of
from .report import Outcome, Plan, say
from .surroundings import Postgres, postgres

PATIENCE = 30
AT_ONCE = 40
"""Races in one round."""
SOON = 150
"""Milliseconds after which the old holder's reservation expires."""


class Held(NamedTuple):
    id: str
    attempt: int
    name: str = ""
    """Its name in its worker's protocol, if that is not its id."""


class OJS:
    """A worker over OJS HTTP. Reports return whether the server accepted them."""

    def __init__(self, cast: Cast, name: str, queue: str, server: str) -> None:
        self.name, self.queue, self.cast = name, queue, cast
        headers = {"Authorization": f"Bearer {cast.key}"}
        self.http = httpx.Client(base_url=cast.url_of(server), headers=headers, timeout=PATIENCE)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/ojs/v1/workers/{path}", json={"worker_id": self.name} | body)

    def register(self) -> None:
        said = {"hostname": "campaign", "pid": 1, "queues": [self.queue], "concurrency": 100}
        self.post("register", **said).raise_for_status()

    def claim(self, count: int, *, milliseconds: int = 600_000) -> list[Held]:
        reply = self.post(
            "fetch", queues=[self.queue], count=count, visibility_timeout_ms=milliseconds
        )
        reply.raise_for_status()
        return [Held(job["id"], job["attempt"]) for job in reply.json()["jobs"]]

    def complete(self, job: Held) -> bool:
        return self.taken(self.post("ack", job_id=job.id, attempt=job.attempt))

    def complete_without_attempt(self, job: Held) -> bool:
        return self.taken(self.post("ack", job_id=job.id))

    def fail(self, job: Held) -> bool:
        error = {"type": "Race", "code": "race", "message": "It broke."}
        return self.taken(self.post("nack", job_id=job.id, attempt=job.attempt, error=error))

    def cancel(self, job: Held) -> bool:
        return self.taken(self.http.delete(f"/ojs/v1/jobs/{job.id}"))

    def taken(self, reply: httpx.Response) -> bool:
        if reply.status_code not in (200, 409):
            raise ValueError(f"{reply.status_code} {reply.text[:200]}")
        return reply.status_code == 200


class Flare(OJS):
    def send(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/flare/v1/workers/{path}", json={"worker_id": self.name} | body)

    def register(self) -> None:
        self.send("register", queues=[self.queue], job_types=[TYPE]).raise_for_status()

    def claim(self, count: int, *, milliseconds: int = 0) -> list[Held]:
        reply = self.send("poll", queues=[self.queue], capacity=count)
        reply.raise_for_status()
        jobs = reply.json()["jobs"]
        return [Held(uuid_of(job["id"]), job["attempt"], job["id"]) for job in jobs]

    def complete(self, job: Held) -> bool:
        return self.taken(self.send("ack", job_id=job.name, status="succeeded"))


class AGQ:
    def __init__(self, cast: Cast, name: str, queue: str, server: str) -> None:
        import redis

        self.name, self.queue = name, queue
        self.redis = redis.Redis(
            port=cast.ports["agq"],
            password=cast.key,
            single_connection_client=True,
            socket_timeout=PATIENCE,
        )

    def register(self) -> None:
        said = {
            "worker_id": self.name,
            "hostname": "campaign",
            "agw_version": "1",
            "capabilities": {"tools": ["jq"], "agentic_units": []},
            "max_concurrent_jobs": AT_ONCE,
        }
        self.redis.execute_command("WORKER.REGISTER", json.dumps(said))

    def claim(self, count: int, *, milliseconds: int = 0) -> list[Held]:
        found = []
        while len(found) < count and (pulled := self.redis.brpop([f"queue:{self.queue}"], 0.2)):
            job = json.loads(pulled[1])
            found.append(Held(job["job_id"], job["attempt"]))
        return found

    def complete(self, job: Held) -> bool:
        import redis

        try:
            self.redis.execute_command("JOB.UPDATE", job.id, '{"status": "completed"}')
        except redis.ResponseError as refusal:
            if "cannot update job" not in str(refusal):
                raise
            return False
        return True


class Rota:
    def __init__(self, cast: Cast, name: str, queue: str, server: str) -> None:
        from websockets.sync.client import connect

        self.name, self.queue, self.received = name, queue, 0
        url = f"ws://127.0.0.1:{cast.ports['rota']}/work"
        header = {"Authorization": f"Bearer {cast.key}"}
        self.socket = connect(url, additional_headers=header, proxy=None)
        self.waiting: list[Held] = []

    def say(self, **message: Any) -> dict[str, Any]:
        text = {"type": "heartbeat", "received": self.received} | message
        self.socket.send(json.dumps(text))
        while True:
            if answer := self.hear(PATIENCE):
                return answer

    def hear(self, seconds: float) -> dict[str, Any] | None:
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=seconds))
        if message["type"] != "assignment":
            return message
        self.received += 1
        job = message["job"]
        self.waiting.append(Held(job["id"], job["attempt"]))
        return None

    def register(self) -> None:
        specs = [{"id": TYPE, "checksum": CHECKSUM}]
        said = {"worker_id": self.name, "hostname": "campaign", "queues": [self.queue]}
        self.say(registration=said | {"specs": specs}, wanted=0)

    def claim(self, count: int, *, milliseconds: int = 0) -> list[Held]:
        self.say(wanted=count)
        try:
            while len(self.waiting) < count:
                self.hear(0.5)
        except TimeoutError:
            self.say(wanted=0)
        found, self.waiting = self.waiting, []
        return found

    def complete(self, job: Held) -> bool:
        result = {"job_id": job.id, "attempt": job.attempt, "outcome": "succeeded"}
        (answer,) = self.say(results=[result])["results"]
        return bool(answer["ok"])

    def beat(self) -> None:
        """Silence of five seconds is a death."""
        self.say()


class Race(NamedTuple):
    """The two that race for a job, and the expected outcome.

    Args:
        second: protocol of the worker that gets the job after the first one lost it; empty means
            that both act for the holder.
        wins: which must succeed: 0, 1, or None for exactly one of the two.
    """

    name: str
    left: Callable[[Any, Held], bool]
    right: Callable[[Any, Held], bool]
    second: str = ""
    wins: int | None = None


PROTOCOLS: dict[str, Any] = {"ojs": OJS, "flare": Flare, "agq": AGQ, "rota": Rota}


def complete(worker: Any, job: Held) -> bool:
    return bool(worker.complete(job))


def fail(worker: Any, job: Held) -> bool:
    return bool(worker.fail(job))


def cancel(worker: Any, job: Held) -> bool:
    return bool(worker.cancel(job))


def complete_without_attempt(worker: Any, job: Held) -> bool:
    return bool(worker.complete_without_attempt(job))


RACES = (
    Race("the holder acks twice at once", complete, complete),
    Race("the holder acks and fails it", complete, fail),
    Race("the holder acks, an operator cancels", complete, cancel),
    Race("the holder fails it, an operator cancels", fail, cancel),
    Race("the old holder acks late, a new one over OJS", complete, complete, "ojs", 1),
    Race("the old holder names no attempt", complete_without_attempt, complete, "ojs", 1),
    Race("the old holder fails it late", fail, complete, "ojs", 1),
    Race("the old holder, a new one over Flare", complete, complete, "flare", 1),
    Race("the old holder, a new one over AGQ", complete, complete, "agq", 1),
    Race("the old holder, a new one over Rota", complete, complete, "rota", 1),
)


def finishers(plan: Plan) -> list[Outcome]:
    began = time.monotonic()
    outcome = Outcome("d")
    tally: dict[str, list[int]] = {}
    with postgres(plan.folder / "postgres", plan.template) as database:
        cast = Cast(plan.folder, database.url, REAPER_INTERVAL="0.1")
        cast.use_key(plan.template.key)
        with cast:
            for name in ("server-1", "server-2"):
                cast.add_server(name)
            for name in ("agq", "rota"):
                cast.add_gateway(name)
            cast.add_reaper("reaper-1")
            wait_until_served(cast)
            until = time.monotonic() + plan.seconds
            rounds = itertools.cycle(RACES)
            chance = random.Random(plan.seed)
            raced = 0
            size = min(AT_ONCE, -(-plan.jobs // len(RACES)))
            for number, race in enumerate(rounds):
                if raced >= plan.jobs or (time.monotonic() > until and number >= len(RACES)):
                    break
                results = run(cast, race, number, size, chance)
                raced += len(results)
                judge(race, results, outcome, tally.setdefault(race.name, [0, 0, 0, 0]))
                if number % len(RACES) == 0:
                    say(f"{raced:,} of {plan.jobs:,} races")
        check(database, outcome, raced)
    outcome.notes |= {
        name: f"{left} to the first, {right} to the second, {both} both, {none} neither"
        for name, (left, right, both, none) in tally.items()
    }
    outcome.faults["race"] = raced
    outcome.took = time.monotonic() - began
    return [outcome]


def wait_until_served(cast: Cast) -> None:
    for name in ("server-1", "server-2"):
        running = cast.members[name].running
        assert running is not None
        is_there = partial(Api(cast.url_of(name)).is_there, running.process)
        eventually(is_there, lambda: cast.logs_of("server-1", "server-2"))
    for name, text in (("agq", "are served on"), ("rota", "Rota workers connect to")):
        running = cast.members[name].running
        assert running is not None
        running.wait_for(text)


Result = tuple[Held, bool, bool]


def run(cast: Cast, race: Race, number: int, size: int, chance: random.Random) -> list[Result]:
    queue = f"race-{number}"
    old = OJS(cast, f"old-{number}", queue, "server-1")
    old.register()
    options = {"queue": queue, "retry": {"max_attempts": 3 if race.second else 1}}
    jobs = [{"type": TYPE, "args": [{}], "options": options} for _ in range(size)]
    old.http.post("/ojs/v1/jobs/batch", json={"jobs": jobs}).raise_for_status()
    held = old.claim(size, milliseconds=SOON if race.second else 600_000)
    if not race.second:
        # The same worker on another connection, to another server.
        right: Any = OJS(cast, old.name, queue, "server-2")
        pairs = [(job, job) for job in held]
    else:
        right = PROTOCOLS[race.second](cast, f"new-{number}", queue, "server-2")
        right.register()
        first = {job.id: job for job in held}
        taken: list[Held] = []
        deadline = time.monotonic() + PATIENCE
        while len(taken) < size and time.monotonic() < deadline:
            taken += right.claim(size - len(taken))
        pairs = [(first[job.id], job) for job in taken]
    return at_once(race, old, right, pairs, chance)


def at_once(
    race: Race, left: Any, right: Any, pairs: list[tuple[Held, Held]], chance: random.Random
) -> list[Result]:
    """Let both finish each job at nearly the same moment."""
    gate = threading.Barrier(2, timeout=PATIENCE)
    answers: list[dict[str, bool]] = [{}, {}]
    problems: list[BaseException] = []
    lead = [(chance.randrange(2), chance.uniform(0, 0.002)) for _ in pairs]

    def finish(side: int) -> None:
        worker, do = ((left, race.left), (right, race.right))[side]
        try:
            for pair, (late, seconds) in zip(pairs, lead, strict=True):
                gate.wait()
                if late == side:
                    time.sleep(seconds)
                answers[side][pair[side].id] = do(worker, pair[side])
        except BaseException as problem:
            gate.abort()
            problems.append(problem)

    threads = [threading.Thread(target=finish, args=[side]) for side in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise next(each for each in problems if type(each) is not threading.BrokenBarrierError)
    return [(pair[1], answers[0][pair[0].id], answers[1][pair[1].id]) for pair in pairs]


def judge(race: Race, results: list[Result], outcome: Outcome, tally: list[int]) -> None:
    wrongly: list[str] = []
    for job, left, right in results:
        place = 2 if left and right else 3 if not (left or right) else 0 if left else 1
        tally[place] += 1
        if race.wins is None:
            # A repetition may get the same answer; the record must have it once.
            wrong = not (left or right) or (left and right and race.left is not race.right)
        else:
            wrong = (left, right) != (race.wins == 0, race.wins == 1)
        if wrong:
            wrongly.append(f"{job.id} {left}, {right}")
    if wrongly:
        shown = "; ".join(wrongly[:EXAMPLES])
        outcome.broken.append(f"{race.name}: {len(wrongly)} were answered wrongly: {shown}")


def check(database: Postgres, outcome: Outcome, raced: int) -> None:
    """Check the record: exactly one end for each job."""
    done = outcome.account = Account()
    with database.connect("ojs") as connection:
        rows = connection.execute(
            """
            SELECT job.id, job.state, job.attempt,
                   count(*) FILTER (WHERE event.type IN
                       ('job.completed', 'job.cancelled', 'job.discarded'))
              FROM ojs_jobs_job AS job
         LEFT JOIN ojs_jobs_event AS event ON event.subject = job.id::text
          GROUP BY job.id
            """
        ).fetchall()
        counted = connection.execute("SELECT count(*) FROM ojs_jobs_refusedfinish").fetchone()
    assert counted is not None
    done.refused = counted[0]
    done.jobs = done.confirmed = len(rows)
    done.attempts = sum(attempt for _, _, attempt, _ in rows)
    ended = ("completed", "cancelled", "discarded")
    done.lost = [f"{job} ({state})" for job, state, _, _ in rows if state not in ended]
    done.twice = [f"{job} ({ends} ends)" for job, _, _, ends in rows if ends > 1]
    done.unaccounted = [f"{job} (no end recorded)" for job, _, _, ends in rows if ends == 0]
    if len(rows) != raced:
        outcome.broken.append(f"{raced} races were run for {len(rows)} jobs")
