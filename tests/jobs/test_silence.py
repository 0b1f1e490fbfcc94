"""A silent database server is given up by all connections at once; a busy one is not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from django.db import connections

from jobs.store import silence, watchdog
from jobs.store.database import alias, drop_if_dead
from tests.database import connection
from tests.processes import eventually, free_port
from tests.proxies import Proxy

pytestmark = pytest.mark.postgres

NEVER = "SELECT pg_sleep(600)"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Shortens periods of seconds to fractions of a second."""
    monkeypatch.setattr(watchdog, "TICK", 0.02)
    monkeypatch.setattr(silence, "SUSPICION", 0.1)
    monkeypatch.setattr(silence, "PAUSE", 0.2)
    monkeypatch.setattr(silence, "AGAIN", 0.05)


@pytest.fixture
def proxy(transactional_db) -> Iterator[Proxy]:
    with Proxy() as between:
        yield between
    # The server does not notice that the client of a statement has gone.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s", [NEVER]
        )


@pytest.fixture
def site(proxy) -> Iterator[Proxy]:
    """Connects Django's own connections through the proxy."""
    own = {name: connection.settings_dict[name] for name in ("HOST", "PORT")}
    connection.close()
    connection.settings_dict.update(HOST=proxy.host, PORT=proxy.port)
    yield proxy
    connection.close()
    connection.settings_dict.update(own)


def through(proxy: Proxy) -> psycopg.Connection[Any]:
    """A watched psycopg connection, like the one that listens for jobs."""
    parameters = dict(connection.get_connection_params())
    for ours in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(ours, None)
    parameters |= {"host": proxy.host, "port": proxy.port, "autocommit": True}
    made: psycopg.Connection[Any] = psycopg.connect(**parameters)
    watchdog.watch(made)
    return made


def beside(function: Any, *arguments: Any) -> Future[Any]:
    """The future result or exception of a separate thread."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(function(*arguments))
        except Exception as problem:
            outcome.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def is_waiting(line: psycopg.Connection[Any]) -> bool:
    return line.pgconn.transaction_status == silence.ACTIVE


# A server that is frozen


def test_all_statements_that_wait_for_a_frozen_server_end(proxy, caplog):
    lines = [through(proxy) for _ in range(3)]
    outcomes = [beside(line.execute, NEVER) for line in lines]
    eventually(lambda: all(map(is_waiting, lines)))

    proxy.freeze()

    for outcome in outcomes:
        assert isinstance(outcome.exception(120), psycopg.OperationalError)
    eventually(lambda: f"{proxy.host}:{proxy.port} has answered nothing" in caplog.text)
    assert caplog.text.count("has answered nothing") == 1


def test_connections_on_which_nothing_was_asked_are_given_up_as_well(site):
    """Otherwise the next request of each thread would have to detect it again."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    other = through(site)
    site.freeze()

    assert isinstance(beside(other.execute, NEVER).exception(120), psycopg.OperationalError)

    def is_dropped() -> bool:
        drop_if_dead(connections[alias()])
        return connection.connection is None

    eventually(is_dropped)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_leaves_the_connections_of_its_parent_alone(proxy):
    """A worker process: both share the socket, and shutting it down would affect both."""
    line = through(proxy)

    child = os.fork()
    if not child:
        os._exit(silence.is_watching())

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert silence.is_watching()
    line.close()


def test_a_sites_own_statement_on_the_jobs_database_ends_too(site):
    def ask() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                ready.set()
                frozen.wait()
                cursor.execute(NEVER)
        finally:
            connection.close()

    ready, frozen = threading.Event(), threading.Event()
    outcome = beside(ask)
    ready.wait()
    site.freeze()
    frozen.set()

    assert "OperationalError" in type(outcome.exception(120)).__name__


# A server that is busy


WAIT = "SELECT pg_advisory_lock(12)"
RELEASE = "SELECT pg_advisory_unlock(12)"


@pytest.fixture
def locked(proxy, monkeypatch) -> Iterator[psycopg.Connection[Any]]:
    # This machine may be busy itself. An answered probe restarts the time.
    monkeypatch.setattr(silence, "PAUSE", 1.5)
    with through(proxy) as holder:
        holder.execute(WAIT)
        yield holder


def test_a_statement_may_wait_for_as_long_as_its_server_answers(proxy, locked):
    waiting = through(proxy)
    outcome = beside(waiting.execute, WAIT)
    before = proxy.taken

    # Each probe is a connection.
    eventually(lambda: proxy.taken >= before + 3 * silence.QUESTIONS)
    locked.execute(RELEASE)

    assert outcome.result(120)
    waiting.close()


@pytest.mark.skipif(not hasattr(silence.socket, "TCP_INFO"), reason="Linux tells")
def test_a_server_that_takes_no_connections_but_answers_statements_is_not_given_up(
    proxy, locked, monkeypatch
):
    rounds: list[bool] = []
    real = silence.answers

    def count(address: Any) -> bool:
        rounds.append(real(address))
        return rounds[-1]

    monkeypatch.setattr(silence, "answers", count)
    waiting, busy = through(proxy), through(proxy)
    proxy.close_the_door()
    outcome = beside(waiting.execute, WAIT)

    def a_round_is_over() -> bool:
        busy.execute("SELECT 1")
        return False in rounds

    eventually(a_round_is_over)
    locked.execute(RELEASE)

    assert outcome.result(120)
    waiting.close()
    busy.close()


def test_a_server_answers_by_whichever_way_it_is_reached(transactional_db):
    connection.ensure_connection()
    with silence._socket_of(connection.connection) as end:
        assert silence.answers(silence._other_end(end))


def test_a_machine_that_refuses_connections_is_not_silent(proxy):
    assert silence.answers((silence.socket.AF_INET, ("127.0.0.1", free_port())))


def test_a_server_of_which_only_the_machine_is_left_answers_nothing(proxy):
    proxy.freeze()

    assert not silence.answers((silence.socket.AF_INET, (proxy.host, proxy.port)))


# Order of hosts


@pytest.mark.parametrize(
    ("ports", "wanted", "first"),
    [
        ("{0}", "read-write", "127.0.0.3"),
        ("{0},{0}", "primary", "127.0.0.3"),
        # Either could be right, or two settings would have to change at once.
        ("{0}", "any", "127.0.0.2"),
        ("1,{0}", "read-write", "127.0.0.2"),
    ],
)
def test_the_host_that_took_a_connection_is_tried_first_where_it_is_the_only_one(
    transactional_db, monkeypatch, ports, wanted, first
):
    with Proxy("127.0.0.3") as proxy:
        settings = connection.settings_dict
        own = {name: settings[name] for name in ("HOST", "PORT")}
        options = {**settings["OPTIONS"], "target_session_attrs": wanted}
        monkeypatch.setitem(settings, "OPTIONS", options)
        connection.close()
        settings.update(HOST="127.0.0.2,127.0.0.3", PORT=ports.format(proxy.port))
        try:
            connection.ensure_connection()

            assert settings["HOST"].split(",")[0] == first
            assert sorted(settings["HOST"].split(",")) == ["127.0.0.2", "127.0.0.3"]
        finally:
            connection.close()
            settings.update(own)
