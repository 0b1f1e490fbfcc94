"""Every fast path of the product: its code, what would take its place, and how to do without it.

A fast path is code that exists only for speed, beside which a slower general way exists or could
be written in fewer lines. The product knows nothing of this list: `turn_off()` replaces functions
of the process it is called in (`without`), before the application is imported.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from functools import partial
from importlib import import_module
from typing import Any
from uuid import UUID

OURS = ("jobs", "workers", "ojs_project")


@dataclass(frozen=True)
class FastPath:
    name: str
    what: str
    """What it does, and the general way that would take its place."""
    code: tuple[str | int, ...]
    """What could go: files, definitions in them (`file.py:Class.method`), and single lines."""
    off: Callable[[], None]
    mark: str
    """A function (`module:qualified.name`) that runs only while the path is on; with `not` before
    it, one that then runs less often. Empty if `off` replaces a part of a statement."""
    operations: tuple[str, ...]
    """What it speeds up; see `paths`."""
    tests: tuple[str, ...] = ()
    """Tests of this path alone, in the same notation."""
    beside: tuple[str, ...] = ()
    """Other paths that are off on both sides, as they would go with this one, or hide it."""


def replaced(old: Any, new: Any) -> None:
    """Put `new` in place of `old` in every module of the product that has imported it."""
    for module in tuple(sys.modules.values()):
        if getattr(module, "__name__", "").partition(".")[0] in OURS:
            for name, value in tuple(vars(module).items()):
                if value is old:
                    setattr(module, name, new)


def found(place: str) -> tuple[Any, str, Any]:
    """Return what `module:qualified.name` means: the object, and the owner and name it has."""
    module, _, qualified = place.partition(":")
    owner: Any = import_module(module)
    *outer, name = qualified.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name, getattr(owner, name)


def put(place: str, new: Any) -> None:
    """Replace a function everywhere, a method of a class, or a value in its module."""
    owner, name, old = found(place)
    setattr(owner, name, new)
    if isinstance(owner, types.ModuleType) and callable(old):
        replaced(old, new)


def putting(place: str, new: Any) -> Callable[[], None]:
    return partial(put, place, new)


def changing(place: str, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace something by what `change` makes of it."""

    def off() -> None:
        put(place, change(found(place)[2]))

    return off


def setting(name: str, value: Any) -> Callable[[], None]:
    def off() -> None:
        from jobs.conf import ojs_settings

        assert hasattr(ojs_settings, name)
        vars(ojs_settings)[name] = value

    return off


def together(*several: Callable[[], None]) -> Callable[[], None]:
    def off() -> None:
        for each in several:
            each()

    return off


def with_globals(function: Any, **names: Any) -> Any:
    """Return a copy of a function that sees other global names."""
    plain = inspect.unwrap(function)
    return types.FunctionType(
        plain.__code__, {**plain.__globals__, **names}, plain.__name__, plain.__defaults__
    )


class Forgetful(dict[Any, Any]):
    """A cache that keeps nothing."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


# Ways to do without, where it takes more than a line


def _through_psycopg() -> None:
    """The hot statements through Django's cursor, prepared by psycopg itself."""
    from jobs.store import prepared

    cursor_of = prepared.watched_cursor

    def prepared_by_psycopg(database: Any) -> Any:
        connection = database.connection
        if connection not in prepared._planned_once and connection.autocommit:
            connection.prepare_threshold = 0
            connection.execute(prepared.PLAN_ONCE)
            prepared._planned_once.add(connection)
        return cursor_of(database)

    prepared.possible = lambda database: False
    prepared.watched_cursor = prepared_by_psycopg


def _built_anew() -> None:
    def anew(query: Any, *_: Any) -> Any:
        return types.SimpleNamespace(rows=lambda values: list(query(*values)))

    put("jobs.store.queries:_compiled", anew)


def _one_after_the_other(*statements: Any) -> Any:
    from jobs.store.database import atomic, run

    with atomic():
        return [run(*statement) for statement in statements]


def _ack_then_fetch(
    completions: Any, queues: Any, *, discover: bool = True, project: str = "", **options: Any
) -> Any:
    from workers import protocol

    outcomes = protocol.ack(completions, discover=discover, project=project)
    return outcomes, protocol.fetch(queues, discover=discover, project=project, **options)


def _planned_as_usual(database: Any) -> None:
    from jobs.store import prepared

    prepared._planned_once.add(database.connection)


def _gate_first() -> None:
    """The gate in a statement of its own."""
    from jobs.store.contract import OPEN
    from jobs.store.postgres import PostgresStore

    claim = PostgresStore.claim

    def admitted(self: Any, request: Any) -> Any:
        return claim(self, replace(self.admit(request)[1], gate=OPEN))

    def completed(self: Any, completions: Any, request: Any) -> Any:
        return self.complete(completions), self.claim(request)

    def each(self: Any, requests: Any) -> Any:
        return [self.claim(request) for request in requests]

    put("jobs.store.postgres:PostgresStore.claim", admitted)
    put("jobs.store.postgres:PostgresStore.claim_each", each)
    put("jobs.store.postgres:PostgresStore.complete_and_claim", completed)


def _notify_always() -> None:
    from jobs.store import postgres, wakeup
    from jobs.store.sql import Statement

    condition = "EXISTS (SELECT 1 FROM ojs_jobs_listener)"
    for name, value in tuple(vars(postgres).items()):
        if isinstance(value, Statement) and condition in value:
            setattr(postgres, name, value.replacing(condition, "true"))
    assert condition not in postgres.INSERT_ONE and condition in wakeup.NOTIFY
    wakeup.NOTIFY = wakeup.NOTIFY.replace(condition, "true")


def _each_in_the_document() -> None:
    """A batch as one document with a member for each job, however alike they are."""
    import orjson

    from jobs.store import postgres

    def each(new: Any, document: Any) -> Any:
        jobs = [document | {"id": job.id, "args": job.args} for job in new]
        return {"jobs": orjson.dumps(jobs).decode()}

    put("jobs.store.postgres:_uniform", each)
    postgres.INSERT_UNIFORM = postgres.INSERT_EACH
    postgres.INSERT_UNIFORM_CHOSEN = postgres.INSERT_EACH_CHOSEN


def _listed(uniform: Any) -> Any:
    return lambda *given: (batch := uniform(*given)) and list(batch)


def _whole_model(job: Any) -> Any:
    import copy

    model = copy.copy(job)
    model.args = []
    return model


def _always_reread(checked: Any) -> Any:
    return lambda new, *, reread=False, lenient=False: checked(new, reread=True, lenient=lenient)


def _resolve(path: str) -> Any:
    from django.urls import get_resolver, get_urlconf

    return get_resolver(get_urlconf()).resolve(path)


def _checked_again(parse_uuid: Any) -> Any:
    from jobs.spec.identifiers import UUID_PATTERN

    def parse(text: object) -> UUID | None:
        return UUID(text) if isinstance(text, str) and UUID_PATTERN.fullmatch(text) else None

    return parse


def _format_timestamp(moment: Any) -> str:
    if moment.utcoffset() is None:
        raise ValueError("A timestamp needs a timezone; this datetime is naive.")
    text: str = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _draw(count: int) -> bytes:
    from jobs.spec.identifiers import uuid7

    return b"".join(uuid7().bytes for _ in range(count))


def _parsed(from_row: Any) -> Any:
    """JSON columns parsed, to be written again in the response."""
    import orjson

    parsing = types.SimpleNamespace(Fragment=orjson.loads, loads=orjson.loads)
    return with_globals(
        from_row, orjson=parsing, _fragment=lambda text: None if text is None else json.loads(text)
    )


def _standard_json() -> None:
    from jobs.http import body

    def dumps(document: Any) -> bytes:
        return json.dumps(document, default=str, ensure_ascii=False, separators=(",", ":")).encode()

    put("jobs.http.renderers:dumps", dumps)
    reading = types.SimpleNamespace(loads=json.loads, JSONDecodeError=json.JSONDecodeError)
    body.orjson = reading


def _without_caches() -> None:
    for place in (
        "jobs.store.database:_vendor",
        "jobs.store.sql:_sized",
        "jobs.store.prepared:_numbered",
        "jobs.store.postgres.claiming:gated",
        "jobs.access.address:_plain",
        "workers.bindings.ojs.replies:_moment",
    ):
        put(place, inspect.unwrap(found(place)[2]))


def _all_signals() -> None:
    from django.dispatch import Signal

    import jobs.signals
    import workers.signals

    for module in (jobs.signals, workers.signals):
        for value in vars(module).values():
            if isinstance(value, Signal):
                value.has_listeners = lambda sender=None: True


def _python_threads() -> None:
    """Python's own pool of threads."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    class Threads:
        def __init__(self, most: int, name: str) -> None:
            self._loop = asyncio.get_running_loop()
            self._pool = ThreadPoolExecutor(most, name)

        def submit(self, function: Callable[[], Any]) -> Any:
            return self._loop.run_in_executor(self._pool, function)

        def close(self, patience: float = 0) -> None:
            self._pool.shutdown(wait=False)

    put("workers.asgi.threads:Threads", Threads)


HEARTBEATS = ("heartbeat, no jobs", "heartbeat, no jobs, 32 clients", "heartbeat, 10 jobs")
BATCHES = ("enqueue 100", "enqueue 1000")
SQL = "jobs/store/postgres/"
GATHERED_TESTS = (
    "tests/workers/test_request_threads.py:test_requests_that_are_read_together_are_one_batch_"
    "and_call_one_thread",
    "tests/workers/test_request_threads.py:test_no_request_of_a_large_crowd_is_left_over",
)

FETCHES = (
    "workers/bindings/ojs/verbs.py:fetches",
    "workers/protocol.py:Fetch",
    "workers/protocol.py:fetch_each",
    "jobs/engine/claim.py:claim_each",
    "jobs/store/contract.py:ClaimRequest.is_plain",
    "jobs/store/contract.py:Store.claim_each",
    "jobs/store/portable.py:PortableStore.claim_each",
    "jobs/store/postgres/claiming.py:_for_several",
    "jobs/store/postgres/claiming.py:claim_each",
    "jobs/store/postgres/claiming.py:_alike",
    "jobs/store/postgres/claiming.py:_kind",
    8,
)

FAST_PATHS: Sequence[FastPath] = (
    # From the socket to a verb
    FastPath(
        "direct answers",
        "A POST that arrives whole skips the ASGI messages, which all other requests use.",
        (
            "workers/asgi/application.py:JobServer.answer_whole",
            "workers/asgi/application.py:JobServer.finish",
            "workers/asgi/application.py:Reply.written",
            "workers/asgi/application.py:Later.written",
            "workers/management/http_protocol.py:HttpProtocol._start_asgi_task",
            "workers/management/http_protocol.py:HttpProtocol._reply",
            15,
        ),
        lambda: delattr(*found("workers.asgi.application:JobServer.answer_whole")[:2]),
        "workers.asgi.application:JobServer.answer_whole",
        ("heartbeat, no jobs", "heartbeat, no jobs, 32 clients", "enqueue 1"),
        ("tests/workers/test_runhttp.py:test_a_post_that_arrives_whole_needs_no_messages",),
    ),
    FastPath(
        "pool of threads",
        "The thread that became idle last gets the next request, instead of Python's pool.",
        ("workers/asgi/threads.py", -20),
        _python_threads,
        "workers.asgi.threads:Threads.submit",
        ("heartbeat, no jobs, 1 client", "heartbeat, no jobs", "fetch 1 + ack 1"),
        ("tests/workers/test_request_threads.py",),
    ),
    FastPath(
        "gathered requests",
        "Heartbeats, single enqueues, FETCHes and ACKs in hand at once share a thread and a "
        "statement; each of them takes the way of all others.",
        (
            "workers/asgi/gather.py",
            "ojs_project/bypass.py:Bypass.gathered",
            "ojs_project/bypass.py:Bypass.respond_together",
            "jobs/http/fast_path.py:FastView.answer_together",
            "jobs/http/fast_path.py:FastView.is_gathered",
            "jobs/http/verbs.py:outcome_of",
            "workers/bindings/ojs/verbs.py:heartbeats",
            "workers/bindings/ojs/verbs.py:acks",
            *FETCHES,
            "jobs/api/verbs.py:creates",
            "jobs/api/verbs.py:_may_conflict",
            "workers/protocol.py:beat_all",
            "workers/liveness/heartbeats.py:write_all",
            "workers/store/postgres/__init__.py:PostgresHeartbeatStore.beat_all",
            "workers/store/portable.py:PortableHeartbeatStore.beat_all",
            "workers/store/postgres/batches.py:write_all",
            12,
        ),
        putting("ojs_project.bypass:Bypass.gathered", lambda self, environ: None),
        "workers.asgi.gather:Gatherer.submit",
        (*HEARTBEATS[:2], "enqueue 1", "enqueue 1, 32 clients", "fetch 1 + ack 1"),
        GATHERED_TESTS,
    ),
    FastPath(
        "… of these, heartbeats",
        "Only heartbeats are no longer gathered.",
        (
            "workers/bindings/ojs/verbs.py:heartbeats",
            "workers/protocol.py:beat_all",
            "workers/liveness/heartbeats.py:write_all",
            "workers/store/postgres/batches.py:write_all",
            4,
        ),
        putting("workers.bindings.ojs.verbs:heartbeats", None),
        "workers.bindings.ojs.verbs:heartbeats",
        HEARTBEATS[:2],
    ),
    FastPath(
        "… of these, enqueues",
        "Only enqueues are no longer gathered.",
        ("jobs/api/verbs.py:creates", "jobs/api/verbs.py:_may_conflict"),
        putting("jobs.api.verbs:creates", None),
        "jobs.api.verbs:creates",
        ("enqueue 1", "enqueue 1, 32 clients"),
    ),
    FastPath(
        "… of these, ACKs",
        "Only ACKs are no longer gathered.",
        ("workers/bindings/ojs/verbs.py:acks",),
        putting("workers.bindings.ojs.verbs:acks", None),
        "workers.bindings.ojs.verbs:acks",
        ("fetch 1 + ack 1", "fetch 1 + ack 1, 32 clients"),
    ),
    FastPath(
        "… of these, FETCHes",
        "Only FETCHes are no longer gathered.",
        FETCHES,
        putting("workers.bindings.ojs.verbs:fetches", None),
        "workers.bindings.ojs.verbs:fetches",
        ("fetch 1 + ack 1", "fetch 1 + ack 1, 32 clients"),
        ("tests/workers/test_fetch_together.py",),
    ),
    FastPath(
        "bypass of Django's handler",
        "The hot verbs skip Django's handler and the project's middleware.",
        ("ojs_project/bypass.py",),
        putting("ojs_project.bypass:Bypass.respond", lambda self, environ: None),
        "ojs_project.bypass:Bypass._hot",
        ("heartbeat, no jobs", "enqueue 1", "fetch 10 carrying acks"),
        ("tests/project/test_bypass.py",),
        beside=("gathered requests",),
    ),
    FastPath(
        "fast path of the hot verbs",
        "The hot verbs skip REST framework, whose viewsets do the same. What waits or streams on "
        "the event loop needs most of these lines anyway.",
        ("jobs/http/fast_path.py",),
        setting("FAST_PATH", False),
        "jobs.http.fast_path:FastView.answer",
        ("heartbeat, no jobs", "enqueue 1", "fetch 10 carrying acks"),
        ("tests/project/test_fast_path.py",),
        beside=("gathered requests", "bypass of Django's handler"),
    ),
    FastPath(
        "resolved paths",
        "The view of a path without parameters is cached, where Django's handler is used.",
        ("ojs_project/middleware.py:resolve",),
        putting("ojs_project.middleware:resolve", _resolve),
        "ojs_project.middleware:resolve",
        ("heartbeat, no jobs",),
        beside=("gathered requests", "bypass of Django's handler"),
    ),
    FastPath(
        "API keys",
        "A checked key is cached for ten seconds.",
        (14,),
        setting("API_KEY_CACHE", timedelta(0)),
        "not jobs.http.authentication:_look",
        ("heartbeat, no jobs", "enqueue 1"),
    ),
    FastPath(
        "small caches",
        "Six functions are cached: the database's vendor, sized, numbered and gated statements, "
        "addresses, and the text of a time.",
        (6,),
        _without_caches,
        "jobs.store.database:_vendor",
        ("heartbeat, no jobs", "fetch 1 + ack 1"),
    ),
    FastPath(
        "frozen imports",
        "The garbage collector skips what a server or a worker has imported.",
        (4,),
        putting("gc:freeze", lambda: None),
        "gc:freeze",
        ("heartbeat, no jobs", "fetch 100 carrying acks"),
    ),
    FastPath(
        "signals with receivers",
        "A signal without receivers is not sent on commit.",
        (10,),
        _all_signals,
        "not jobs.signals:send_on_commit",
        ("heartbeat, no jobs", "fetch 1 + ack 1"),
    ),
    FastPath(
        "orjson",
        "Requests and responses are read and written by orjson, instead of Python's json.",
        (0,),
        _standard_json,
        "jobs.http.renderers:dumps",
        ("enqueue 100", "fetch 100 carrying acks"),
        beside=("JSON unparsed",),
    ),
    FastPath(
        "numbers only where long",
        "Numbers and texts are checked only in bodies that may contain one that is too large.",
        (5,),
        putting("jobs.spec.jsonable:LONG", b""),
        "not jobs.http.body:_check_values",
        ("enqueue 100", "fetch 100 carrying acks"),
    ),
    # The database
    FastPath(
        "statements of PostgreSQL",
        "One statement for each verb, instead of the portable store, which runs on PostgreSQL too.",
        (
            "jobs/store/postgres/__init__.py",
            "jobs/store/postgres/claiming.py",
            *(
                f"{SQL}{name}.sql"
                for name in (
                    *("claim", "complete", "insert_one", "insert_each", "insert_uniform"),
                    *("lock_to_fail", "move_failed", "promote", "reclaim", "save_checkpoint"),
                )
            ),
            "workers/store/postgres/__init__.py",
            "workers/store/postgres/batches.py",
            "workers/store/postgres/heartbeat.sql",
            "workers/store/postgres/heartbeats.sql",
            "workers/store/postgres/gate.sql",
            "jobs/store/group_commit.py",
            "jobs/store/prepared.py",
            "jobs/store/sql.py",
        ),
        setting("STORE", "portable"),
        "jobs.store.postgres.claiming:query",
        ("enqueue 1", "enqueue 100", "fetch 10 carrying acks", "heartbeat, 10 jobs"),
        ("tests/jobs/test_sql_files.py",),
    ),
    FastPath(
        "statements past the cursors",
        "Hot statements go to libpq prepared, instead of through Django's cursor, prepared by "
        "psycopg.",
        ("jobs/store/prepared.py", -25),
        _through_psycopg,
        "jobs.store.prepared:_run",
        ("enqueue 1", "heartbeat, 10 jobs", "fetch 1 + ack 1", "fetch 100 carrying acks"),
        ("tests/jobs/test_prepared.py",),
        beside=("one round trip",),
    ),
    FastPath(
        "one round trip",
        "ACKs and the claim are one round trip (libpq's pipeline), instead of four.",
        (
            "jobs/store/prepared.py:_send",
            "jobs/store/prepared.py:_results",
            "jobs/store/database.py:run_together",
            22,
        ),
        putting("jobs.store.database:run_together", _one_after_the_other),
        "jobs.store.prepared:_send",
        ("fetch 1 carrying acks", "fetch 10 carrying acks", "runjobworker"),
        tuple(
            f"tests/jobs/test_prepared.py:test_{name}"
            for name in (
                "several_happen_together_and_see_one_another",
                "of_several_all_are_undone_by_the_error_of_one",
                "several_in_a_transaction_go_with_it",
                "several_in_a_savepoint_are_undone_with_it",
                "several_discarded_statements_are_prepared_again",
                "several_on_a_connection_that_is_gone_are_an_error_of_django",
            )
        ),
    ),
    FastPath(
        "acks and fetch as one",
        "A fetch that carries acks is one transaction and one round trip, instead of two; without "
        "it, `one round trip` goes as well.",
        (
            "workers/protocol.py:exchange",
            "jobs/engine/claim.py:exchange",
            "jobs/store/postgres/__init__.py:PostgresStore.complete_and_claim",
            "jobs/store/portable.py:PortableStore.complete_and_claim",
            "jobs/store/prepared.py:_send",
            "jobs/store/prepared.py:_results",
            "jobs/store/database.py:run_together",
            30,
        ),
        putting("workers.protocol:exchange", _ack_then_fetch),
        "workers.protocol:exchange",
        ("fetch 1 carrying acks", "fetch 10 carrying acks", "runjobworker"),
        ("tests/workers/test_exchange.py",),
    ),
    FastPath(
        "planned once",
        "A session plans prepared statements once, whatever PostgreSQL thinks of the plan.",
        ("jobs/store/prepared.py:_plan_once", 7),
        putting("jobs.store.prepared:_plan_once", _planned_as_usual),
        "jobs.store.prepared:_plan_once",
        ("fetch 1 + ack 1", "fetch 10 carrying acks"),
        (
            "tests/jobs/test_prepared.py:test_a_session_plans_what_is_prepared_once",
            "tests/jobs/test_prepared.py:test_that_is_not_left_to_a_transaction_which_may_be_"
            "rolled_back",
            "tests/jobs/test_prepared.py:test_a_site_that_binds_on_the_server_plans_as_it_likes",
        ),
    ),
    FastPath(
        "times read once",
        "Equal times in consecutive rows are parsed once, and not by Django's loader.",
        (
            "jobs/store/prepared.py:_Adapting",
            "jobs/store/prepared.py:_adapting",
            "jobs/store/prepared.py:_remembering",
            "jobs/store/prepared.py:_in_utc",
            4,
        ),
        putting("jobs.store.prepared:_adapting", lambda connection: connection),
        "jobs.store.prepared:_remembering",
        ("fetch 100 carrying acks", "fetch 50 + ack 50"),
        (
            "tests/jobs/test_prepared.py:test_times_are_read_as_django_reads_them_row_by_row",
            "tests/jobs/test_prepared.py:test_times_are_read_in_the_time_zone_of_the_database",
        ),
    ),
    FastPath(
        "gate in the claim",
        "The claim itself checks what its worker may have, instead of a statement before it.",
        ("workers/store/postgres/gate.sql", "jobs/store/postgres/claiming.py:gated", 12),
        _gate_first,
        "not jobs.store.postgres:PostgresStore.admit",
        ("fetch 1 + ack 1", "fetch 10 carrying acks"),
    ),
    FastPath(
        "NOTIFY for listeners only",
        "Nothing is sent while no process listens. NOTIFY serializes commits.",
        (20,),
        _notify_always,
        "",
        ("enqueue 1", "enqueue 1, 32 clients"),
    ),
    FastPath(
        "known queues",
        "A process makes sure once that a queue has a row.",
        ("jobs/engine/insertion.py:_unknown_queues", "jobs/engine/insertion.py:forget_queues", 6),
        putting("jobs.engine.insertion:_unknown_queues", lambda names: names),
        "jobs.engine.insertion:_unknown_queues",
        ("enqueue 1",),
    ),
    FastPath(
        "known schemas",
        "Schemas and limits of tenants are read again only after a change.",
        ("jobs/engine/schemas.py:is_stale", "jobs/engine/schemas.py:changing", 20),
        changing("jobs.engine.schemas:checked", _always_reread),
        "not jobs.engine.schemas:read_again",
        ("enqueue 1",),
    ),
    FastPath(
        "heartbeats in one statement",
        "Heartbeats in hand at once are one statement, instead of one each.",
        (
            "workers/store/postgres/batches.py",
            "workers/store/postgres/heartbeats.sql",
            "jobs/store/group_commit.py",
        ),
        together(
            putting("workers.store.postgres.batches:write", lambda heartbeat: None),
            putting(
                "workers.store.postgres.batches:write_all", lambda given: [None for _ in given]
            ),
        ),
        "workers.store.postgres.batches:_write_all",
        HEARTBEATS,
        ("tests/concurrency/test_batched_heartbeats.py", "tests/jobs/test_group_commit.py"),
    ),
    FastPath(
        "group commit",
        "Heartbeats of several threads share a statement. Under `runhttp`, OJS heartbeats are "
        "gathered before; this remains for other servers and protocols.",
        ("jobs/store/group_commit.py", 8),
        putting(
            "jobs.store.group_commit:GroupCommit.do",
            lambda self, key, item: self._run([item])[0],
        ),
        "jobs.store.group_commit:GroupCommit._appoint",
        HEARTBEATS,
        ("tests/jobs/test_group_commit.py",),
        beside=("gathered requests",),
    ),
    # Batches
    FastPath(
        "uniform batches",
        "Jobs of a batch that differ only in their arguments are validated once, and stored "
        "without an object for each.",
        (
            "jobs/spec/batches.py:UniformBatch",
            "jobs/spec/batches.py:uniform",
            "jobs/spec/batches.py:representatives",
            "jobs/spec/batches.py:shared_targets",
            "jobs/spec/identifiers.py:draw",
            "jobs/engine/schemas.py:_checked_uniform",
            10,
        ),
        putting("jobs.spec.batches:uniform", lambda documents, check, arguments: None),
        "jobs.spec.batches:UniformBatch.in_parts",
        (*BATCHES, "in process: enqueue 1000"),
        tuple(
            f"tests/jobs/test_enqueue.py:test_{name}"
            for name in (
                "a_job_that_is_not_like_the_others_of_its_batch_is_looked_at_by_itself",
                "arguments_are_looked_at_in_every_job_of_a_batch",
                "it_makes_no_difference_when_the_jobs_of_a_batch_are_looked_at",
            )
        ),
    ),
    FastPath(
        "jobs made on access",
        "The jobs of a uniform batch become objects on access, instead of a list of copies.",
        (
            "jobs/spec/batches.py:UniformBatch",
            "jobs/spec/batches.py:representatives",
            "jobs/spec/batches.py:shared_targets",
            "jobs/engine/schemas.py:_checked_uniform",
            10,
            -8,
        ),
        changing("jobs.spec.batches:uniform", _listed),
        "jobs.spec.batches:UniformBatch.in_parts",
        ("enqueue 1000", "in process: enqueue 1000"),
        (
            "tests/jobs/test_enqueue.py:test_it_makes_no_difference_when_the_jobs_of_a_batch_"
            "are_looked_at",
        ),
    ),
    FastPath(
        "shapes",
        "A job of a known shape is a copy of one that was validated, in a batch and across "
        "requests.",
        ("jobs/spec/batches.py:checked_once", "jobs/spec/batches.py:Memory", 3),
        putting(
            "jobs.spec.batches:checked_once", lambda document, known, check, args: check(document)
        ),
        "jobs.spec.batches:checked_once",
        ("enqueue 1", "enqueue 100"),
        beside=("uniform batches",),
    ),
    FastPath(
        "statement of a uniform batch",
        "PostgreSQL reads what the jobs of a batch share once (`insert_uniform.sql`).",
        (f"{SQL}insert_uniform.sql", "jobs/store/postgres/__init__.py:_uniform", 4),
        _each_in_the_document,
        "jobs.store.postgres:_uniform",
        ("enqueue 100", "in process: enqueue 1000"),
    ),
    FastPath(
        "statement of a single job",
        "One plain job has a statement without a document to parse (`insert_one.sql`).",
        (f"{SQL}insert_one.sql", "jobs/store/postgres/__init__.py:_one", 6),
        putting("jobs.store.postgres:USUAL", frozenset()),
        "jobs.store.postgres:_one",
        ("enqueue 1", "in process: enqueue 1"),
        ("tests/jobs/test_enqueue.py:test_a_job_is_the_same_whichever_statement_stored_it",),
    ),
    FastPath(
        "queries compiled once",
        "Queries for the end of a workflow's job are built and compiled once, and prepared; Django "
        "would do so each time.",
        ("jobs/store/queries.py", -8, "jobs/store/expressions.py:Given", 14),
        _built_anew,
        "jobs.store.queries:_Compiled.rows",
        ("in process: jobs of groups, fetch + ack 1",),
        ("tests/jobs/test_queries.py",),
    ),
    FastPath(
        "ids drawn together",
        "The ids of a batch take one lock and one call for random bytes.",
        ("jobs/spec/identifiers.py:draw",),
        putting("jobs.spec.identifiers:draw", _draw),
        "jobs.spec.identifiers:draw",
        ("in process: enqueue 1000",),
    ),
    FastPath(
        "models without defaults",
        "The model that jobs are copied from holds only what is not a default.",
        ("jobs/spec/batches.py:model_of", 3, -3),
        putting("jobs.spec.batches:model_of", _whole_model),
        "jobs.spec.batches:model_of",
        ("enqueue 1000",),
    ),
    FastPath(
        "plain outcomes",
        "An outcome in a list that only names its job and attempt skips the validation.",
        ("workers/bindings/ojs/requests.py:_plain_completion", 4),
        putting("workers.bindings.ojs.requests:_plain_completion", lambda item, sender: None),
        "workers.bindings.ojs.requests:_plain_completion",
        ("fetch 100 carrying acks",),
    ),
    FastPath(
        "JSON unparsed",
        "JSON of a claimed job goes from the database to the response unparsed.",
        ("jobs/store/claimed.py:_fragment", 3),
        changing("jobs.store.claimed:from_row", _parsed),
        "jobs.store.claimed:from_row",
        ("fetch 100 carrying acks",),
    ),
    FastPath(
        "ids parsed by hand",
        "UUIDs are made without a second check of their text.",
        (4,),
        changing("jobs.spec.identifiers:parse_uuid", _checked_again),
        "jobs.spec.identifiers:parse_uuid",
        ("fetch 100 carrying acks", "heartbeat, 10 jobs"),
    ),
    FastPath(
        "times written by hand",
        "Times are put together from tables of digits, instead of `isoformat()`.",
        (8,),
        putting("jobs.spec.timestamps:format_timestamp", _format_timestamp),
        "jobs.spec.timestamps:format_timestamp",
        ("enqueue 1000", "heartbeat, no jobs"),
    ),
    # A worker process
    FastPath(
        "reports together",
        "Reports of small jobs wait up to a millisecond for one another.",
        ("workers/runtime/report_batcher.py", 8),
        putting(
            "workers.runtime.report_batcher:ReportBatcher.gather",
            lambda self, reports: None,
        ),
        "workers.runtime.report_batcher:ReportBatcher.gather",
        ("runjobworker",),
    ),
)
BY_NAME: Mapping[str, FastPath] = {path.name: path for path in FAST_PATHS}


def turn_off(names: Sequence[str]) -> None:
    for name in names:
        BY_NAME[name].off()


def counted(places: Sequence[str]) -> dict[str, int]:
    """Count from now on how often each function is called; to be called before `turn_off`."""
    counts = dict.fromkeys(places, 0)
    for place in places:
        put(place, _counting(counts, place, found(place)[2]))
    return counts


def _counting(counts: dict[str, int], place: str, function: Any) -> Any:
    def counting(*args: Any, **kwargs: Any) -> Any:
        counts[place] += 1
        return function(*args, **kwargs)

    counting.__wrapped__ = function
    return counting
