"""Signs of life of a worker for its manager: a fresh file, systemd's watchdog."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jobs
from tests.database import atomic, connection
from tests.processes import eventually, free_port
from tests.workers.site import Shop, becomes, ends_with, tell
from workers.models import Worker
from workers.runtime import health_signal, supervisor

pytestmark = pytest.mark.slow

LONG_AGO = 1_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "alive"


def grows_old(file: Path) -> None:
    os.utime(file, (LONG_AGO, LONG_AGO))


def is_young(file: Path) -> bool:
    return file.stat().st_mtime > LONG_AGO + 1


def is_renewed(file: Path) -> None:
    grows_old(file)
    eventually(lambda: is_young(file))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_file_stays_young_while_the_worker_works_and_only_then(shop, file, processes):
    with shop.worker("--processes", processes, "--alive-file", str(file)) as started:
        is_renewed(file)
        jobs.enqueue("shop.work", ["work"])
        shop.wait_for("work.began")
        is_renewed(file)
        shop.go("work")
        eventually(lambda: file.read_text() == "running")
        tell(started, signal.SIGTSTP)
        eventually(lambda: file.read_text() == "")
        is_renewed(file)
        assert started.terminate() == 0
    grows_old(file)
    assert not is_young(file)


def test_a_server_that_is_away_is_no_reason_to_restart_a_worker(tmp_path, database_url, file):
    shop = Shop(tmp_path, database_url, "http")
    port = free_port()
    shop.url = f"http://127.0.0.1:{port}"
    with shop.starting("--alive-file", str(file)) as started:
        started.wait_for("The server is unavailable")
        is_renewed(file)
        with shop.server(port):
            started.wait_for("jobs at once, of")
            is_renewed(file)
        started.wait_for("Heartbeat failed")
        is_renewed(file)


@pytest.mark.postgres
def test_a_worker_that_is_stuck_gives_no_sign_of_life(shop, file):
    """Its threads wait for a lock on the database that is never released."""
    with shop.worker("--alive-file", str(file)):
        with atomic():
            with connection.cursor() as cursor:
                cursor.execute("LOCK TABLE ojs_workers_worker, ojs_jobs_job")
                eventually(lambda: waits_for_the_lock(cursor))
            grows_old(file)
            assert not is_young(file)
        eventually(lambda: is_young(file))


def waits_for_the_lock(cursor: Any) -> bool:
    cursor.execute(
        "SELECT count(*) FROM pg_locks"
        " WHERE NOT granted AND relation = 'ojs_workers_worker'::regclass"
    )
    return bool(cursor.fetchone()[0])


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's end: receives the messages of the unit's main process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.settimeout(45)
        yield ear


@pytest.mark.parametrize("processes", ["1", "2"])
def test_systemd_hears_that_it_is_ready_alive_and_ending(shop, systemd, monkeypatch, processes):
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
    heard: list[str] = []

    def hears(message: str) -> None:
        while message not in heard:
            heard.append(systemd.recv(100).decode())

    with shop.worker("--processes", processes) as started:
        hears("READY=1")
        assert Worker.objects.count() == int(processes), "ready is who has registered"
        heard.clear()
        hears("WATCHDOG=1")
        started.process.terminate()
        hears("STOPPING=1")
        ends_with(started)


def test_a_supervisor_gives_no_sign_of_life_for_a_child_that_is_stuck():
    pulses = health_signal.HealthSignals(2)
    first, second = pulses.of(0), pulses.of(1)
    for child in (first, second):
        child.begin()
    first.ready()
    assert (first.is_ready, second.is_ready) == (True, False)
    assert first.is_alive and second.is_alive
    health_signal.SLOT.pack_into(pulses._slots, 0, -health_signal.STALE, True, True)
    assert not first.is_alive
    first.beat()
    assert first.is_alive and first.is_ready

    signals: list[str] = []

    class Outside(health_signal.HealthSignal):
        def beat(self) -> None:
            signals.append("alive")

        def ready(self) -> None:
            signals.append("ready")

    crew = supervisor.Supervisor(2, lambda pulse: 0, Outside())
    crew._pulses, crew._places = pulses, {101: 0, 102: 1}
    crew._beat()
    second.ready()
    crew._beat()
    assert signals == ["alive", "ready"], "ready when all are; alive at most once a second"
    crew._beaten_at = 0.0
    health_signal.SLOT.pack_into(
        pulses._slots, health_signal.SLOT.size, -health_signal.STALE, True, True
    )
    crew._beat()
    assert signals == ["alive", "ready"]


def test_work_goes_on_where_no_sign_can_be_left(shop, file):
    file.mkdir()
    made = jobs.enqueue("shop.echo")
    with shop.worker("--alive-file", str(file)):
        becomes(made, "completed")
