"""The same no-op job for every peer, and how each enqueues and processes it.

python peer_jobs.py PEER enqueue|bulk COUNT WARM_UP     prints the seconds that COUNT took
python peer_jobs.py PEER stock COUNT WARM_UP            the fastest way, for others to work off
python peer_jobs.py PEER work                           runs until it is killed

Settings are in the environment (`contenders.py`); each peer is used as its own documentation
recommends for many short jobs: results off, quiet, connections kept.
"""

import os
import sys

if os.environ.get("PEER_GREENLETS"):
    # Before anything else is imported, as gevent asks.
    from gevent import monkey

    monkey.patch_all()

import struct
import time

PLACES = int(os.environ.get("PEER_PLACES", "10"))
PROCESSES = int(os.environ.get("PEER_PROCESSES", "1"))
DATABASE = os.environ.get("PEER_DATABASE", "")
REDIS = os.environ.get("PEER_REDIS", "")
BATCH = 1000
_ticks = -1


def tick() -> None:
    """The whole job: record the time, by appending eight bytes, whichever process it is."""
    global _ticks
    if _ticks < 0:
        _ticks = os.open(os.environ["PEER_TICKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_ticks, struct.pack("d", time.time()))


async def tick_in_the_loop() -> None:
    tick()


def django_site() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "peer_settings"
    import django

    django.setup()


def manage(*arguments: str) -> None:
    from django.core.management import call_command

    call_command(*arguments)


class Peer:
    def prepare(self) -> None:
        """Create what it needs."""

    def enqueue(self, count: int) -> None:
        raise NotImplementedError

    def stock(self, count: int) -> None:
        self.enqueue(count)

    def work(self) -> None:
        raise NotImplementedError


class DjangoQ2(Peer):
    def __init__(self) -> None:
        django_site()

    def prepare(self) -> None:
        manage("migrate", "--verbosity=0")

    def enqueue(self, count: int) -> None:
        from django_q.tasks import async_task

        for _ in range(count):
            async_task("peer_jobs.tick", save=False)

    def work(self) -> None:
        manage("qcluster")


class DjangoTasksDb(Peer):
    def __init__(self) -> None:
        django_site()

    def prepare(self) -> None:
        manage("migrate", "--verbosity=0")

    def enqueue(self, count: int) -> None:
        from peer_tasks import tick_task

        for _ in range(count):
            tick_task.enqueue()

    def work(self) -> None:
        manage("db_worker", "--interval=0.05", "--no-reload", "--no-startup-delay")


class Procrastinate(Peer):
    def __init__(self) -> None:
        import procrastinate

        self.app = procrastinate.App(
            connector=procrastinate.SyncPsycopgConnector(conninfo=DATABASE)
        )
        # One connection per running job; its pool's default size is four.
        pool = {"min_size": 4, "max_size": PLACES + 2}
        self.worker_app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=DATABASE, **pool)
        )
        job = tick_in_the_loop if os.environ.get("PEER_ASYNC") else tick
        self.task = self.app.task(name="tick")(tick)
        self.worker_app.task(name="tick")(job)

    def prepare(self) -> None:
        with self.app.open():
            self.app.schema_manager.apply_schema()

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.task.defer()

    def bulk(self, count: int) -> None:
        for start in range(0, count, BATCH):
            self.task.batch_defer(*({} for _ in range(min(BATCH, count - start))))

    stock = bulk

    def work(self) -> None:
        with self.worker_app.open():
            self.worker_app.run_worker(concurrency=PLACES, wait=True)


class Celery(Peer):
    def __init__(self) -> None:
        import celery

        self.app = celery.Celery("peer", broker=REDIS)
        self.app.conf.task_ignore_result = True
        # Its guide to optimizing: a large number for lots of short tasks.
        self.app.conf.worker_prefetch_multiplier = int(os.environ.get("PEER_PREFETCH", "4"))
        self.task = self.app.task(name="tick")(tick)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.task.delay()

    def work(self) -> None:
        pool = os.environ.get("PEER_POOL", "threads")
        options = [f"--pool={pool}", f"--concurrency={PLACES}", "--loglevel=ERROR"]
        options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        options += [f"--hostname=peer{os.getpid()}@bench"]
        self.app.worker_main(["worker", *options])


class Huey(Peer):
    def __init__(self) -> None:
        import huey

        self.huey = huey.RedisHuey("peer", url=REDIS, results=False)
        self.task = self.huey.task(name="tick")(tick)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.task()

    def work(self) -> None:
        # The same as its command with `-q -n -w PLACES -k thread`: quiet, no periodic tasks.
        kind = "greenlet" if os.environ.get("PEER_GREENLETS") else "thread"
        self.huey.create_consumer(workers=PLACES, worker_type=kind, periodic=False).run()


class Dramatiq(Peer):
    def __init__(self) -> None:
        import peer_actors

        self.actor = peer_actors.tick_actor

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.actor.send()

    def work(self) -> None:
        program = os.path.join(os.path.dirname(sys.executable), "dramatiq")
        numbers = ["--processes", str(PROCESSES), "--threads", str(PLACES)]
        # Logs only warnings then, like Python's unconfigured logging.
        os.execv(program, [program, "peer_actors", "--skip-logging", *numbers])


PEERS = {
    "celery": Celery,
    "dramatiq": Dramatiq,
    "huey": Huey,
    "procrastinate": Procrastinate,
    "django-q2": DjangoQ2,
    "django-tasks-db": DjangoTasksDb,
}


def main() -> None:
    name, verb, *rest = sys.argv[1:]
    peer = PEERS[name]()
    if verb in ("work", "prepare"):
        getattr(peer, verb)()
        return
    if isinstance(peer, Procrastinate):
        peer.app.open()
    # The connection is open, and everything imported, before the clock starts.
    count, warm_up = map(int, rest)
    getattr(peer, verb)(warm_up)
    began = time.perf_counter()
    getattr(peer, verb)(count)
    print(time.perf_counter() - began)
    if isinstance(peer, Procrastinate):
        peer.app.close()


if __name__ == "__main__":
    # Workers import the job by this module's name.
    sys.modules["peer_jobs"] = sys.modules["__main__"]
    main()
