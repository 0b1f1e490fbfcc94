"""Contenders and their settings: each is judged by its best one.

"Places" are how many jobs a process may hold at once: threads, greenlets or coroutines. All have
ten, the default of this server, and fifty, a hundred and three hundred if they support it. This
server runs short jobs in fewer threads than it has places.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OURS = "django-ojs"
CELERY = "celery"


@dataclass(frozen=True)
class Setting:
    """One way to run a peer's workers."""

    title: str
    places: int = 1
    more: dict[str, str] = field(default_factory=dict)
    """Further environment variables for `peer_jobs.py`."""


@dataclass(frozen=True)
class Contender:
    name: str
    settings: tuple[Setting, ...]
    guess: int
    """Jobs per second and process that it may process: the initial stock."""
    packages: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    """Where its jobs are; none if they are in Redis."""
    has_bulk: bool = False
    needs_redis: bool = False
    has_processes_of_its_own: bool = False
    """One command starts all processes; otherwise there is one command per process."""


MANY = "128"
"""Celery's recommendations for lots of short tasks; for each number of a worker's places."""
CONTENDERS = (
    Contender(
        OURS,
        tuple(Setting(f"concurrency {places}", places) for places in (10, 50, 100, 300)),
        guess=10_000,
        tables=("ojs_jobs_job", "ojs_jobs_event"),
        has_bulk=True,
        has_processes_of_its_own=True,
    ),
    Contender(
        CELERY,
        (
            Setting("10 threads", 10),
            Setting("10 threads, prefetch 128", 10, {"PEER_PREFETCH": MANY}),
            Setting("50 threads, prefetch 128", 50, {"PEER_PREFETCH": MANY}),
            Setting("100 threads", 100),
            Setting("300 threads", 300),
        ),
        guess=1_200,
        packages=("celery[redis]",),
        needs_redis=True,
    ),
    Contender(
        "celery prefork",
        (Setting("prefetch 128", 1, {"PEER_PREFETCH": MANY, "PEER_POOL": "prefork"}),),
        guess=1_200,
        packages=("celery[redis]",),
        needs_redis=True,
    ),
    Contender(
        "dramatiq",
        (
            Setting("10 threads", 10),
            Setting("10 threads, prefetch 128", 10, {"dramatiq_queue_prefetch": MANY}),
            Setting("50 threads", 50),
            Setting("100 threads", 100),
            Setting("300 threads", 300),
        ),
        guess=3_000,
        packages=("dramatiq[redis]",),
        needs_redis=True,
        has_processes_of_its_own=True,
    ),
    Contender(
        "huey",
        (
            Setting("10 threads", 10),
            Setting("50 threads", 50),
            Setting("100 threads", 100),
            Setting("300 threads", 300),
            Setting("10 greenlets", 10, {"PEER_GREENLETS": "1"}),
        ),
        guess=4_000,
        packages=("huey", "gevent"),
        needs_redis=True,
    ),
    Contender(
        "procrastinate",
        (
            Setting("10 threads", 10),
            Setting("10 coroutines", 10, {"PEER_ASYNC": "1"}),
            Setting("50 coroutines", 50, {"PEER_ASYNC": "1"}),
            Setting("100 coroutines", 100, {"PEER_ASYNC": "1"}),
            Setting("300 coroutines", 300, {"PEER_ASYNC": "1"}),
        ),
        guess=800,
        packages=("procrastinate",),
        tables=("procrastinate_jobs",),
        has_bulk=True,
    ),
    Contender(
        "django-q2",
        (Setting("bulk 100"),),
        guess=1_500,
        packages=("django-q2",),
        tables=("django_q_ormq",),
        has_processes_of_its_own=True,
    ),
    Contender(
        "django-tasks-db",
        (Setting("one at a time"),),
        guess=500,
        packages=("django-tasks", "django-tasks-db"),
        tables=("django_tasks_database_dbtaskresult",),
    ),
)
# hiredis: recommended by Redis's own client, and of use to all who are on Redis.
PACKAGES = sorted({name for peer in CONTENDERS for name in peer.packages})
PACKAGES += ["psycopg[binary]", "hiredis"]
