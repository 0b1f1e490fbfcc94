"""The same no-op job for every peer, and how each is enqueued and worked off.

python peer_jobs.py PEER enqueue|bulk COUNT     prints the seconds it took
python peer_jobs.py PEER work                   runs until it is killed
"""

import os
import struct
import sys
import time

CONCURRENCY = 10
DATABASE = os.environ.get("PEER_DATABASE", "")
REDIS = os.environ.get("PEER_REDIS", "")
_ticks = -1


def tick() -> None:
    """All the job does: note when. Appended, eight bytes, whichever process it is."""
    global _ticks
    if _ticks < 0:
        _ticks = os.open(os.environ["PEER_TICKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_ticks, struct.pack("d", time.time()))


def django_site() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "peer_settings"
    import django

    django.setup()


def manage(*arguments: str) -> None:
    from django.core.management import call_command

    call_command(*arguments)


class DjangoQ2:
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


class DjangoTasksDb:
    def __init__(self) -> None:
        django_site()

    def prepare(self) -> None:
        manage("migrate", "--verbosity=0")

    def enqueue(self, count: int) -> None:
        from peer_tasks import tick_task

        for _ in range(count):
            tick_task.enqueue()

    def work(self) -> None:
        manage("db_worker", "--interval=0.05", "--no-reload")


class Procrastinate:
    def __init__(self) -> None:
        import procrastinate

        self.app = procrastinate.App(
            connector=procrastinate.SyncPsycopgConnector(conninfo=DATABASE)
        )
        self.worker_app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=DATABASE)
        )
        self.task = self.app.task(name="tick")(tick)
        self.worker_app.task(name="tick")(tick)

    def prepare(self) -> None:
        with self.app.open():
            self.app.schema_manager.apply_schema()

    def enqueue(self, count: int) -> None:
        with self.app.open():
            for _ in range(count):
                self.task.defer()

    def bulk(self, count: int) -> None:
        with self.app.open():
            for start in range(0, count, 1000):
                self.task.batch_defer(*({} for _ in range(min(1000, count - start))))

    def work(self) -> None:
        with self.worker_app.open():
            self.worker_app.run_worker(concurrency=CONCURRENCY, wait=True)


class Celery:
    def __init__(self) -> None:
        import celery

        self.app = celery.Celery("peer", broker=REDIS)
        self.app.conf.task_ignore_result = True
        self.task = self.app.task(name="tick")(tick)

    def prepare(self) -> None:
        pass

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.task.delay()

    def work(self) -> None:
        self.app.worker_main(
            ["worker", "--pool=threads", f"--concurrency={CONCURRENCY}", "--loglevel=ERROR"]
        )


PEERS = {
    "celery": Celery,
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
    if not hasattr(peer, verb):
        print("nan")
        return
    began = time.perf_counter()
    getattr(peer, verb)(int(rest[0]))
    print(time.perf_counter() - began)


if __name__ == "__main__":
    # Workers import the job by this module's name.
    sys.modules["peer_jobs"] = sys.modules["__main__"]
    main()
