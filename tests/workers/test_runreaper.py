"""`manage.py runreaper` as a real process (docs/architecture.md)."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Job, JobError
from jobs.spec.lifecycle import State
from tests import processes
from tests.database import another_connection, connection
from tests.factories import WorkerFactory, ago, many_jobs
from workers.chores import reaper
from workers.models import Reaper

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


@pytest.fixture
def runreaper(database_url, tmp_path):
    """Start a reaper on the test database: `with runreaper("--interval", "0.05") as one:`."""

    def start(*arguments: str, name: str = "runreaper", **options):
        environment = processes.environment(database_url, **options)
        return processes.manage(tmp_path, environment, "runreaper", *arguments, name=name)

    return start


def held(count: int = 1, **traits) -> None:
    many_jobs(count, active=True, **traits)


def overdue(count: int = 1) -> None:
    held(count, reserved_until=ago(1))


def all_recovered() -> bool:
    return not Job.objects.exclude(state=State.AVAILABLE).exists()


# One round, for cron


def test_once_does_one_round_says_what_it_did_and_ends(runreaper):
    overdue(2)
    worker = WorkerFactory(silent=True)
    held(reserved_by=worker.pk)

    with runreaper("--once") as once:
        assert once.wait() == 0, once.output

    assert all_recovered()
    for line in (
        "1 workers declared dead",
        "1 jobs of dead workers recovered",
        "2 reservations expired",
    ):
        assert line in once.output
    assert not reaper.is_silent(reaper.last_seen())


def test_a_round_that_did_nothing_says_nothing(capsys):
    call_command("runreaper", "--once")

    assert capsys.readouterr().out == ""


def test_once_says_what_failed_does_the_rest_and_ends_with_an_error(monkeypatch):
    def fail() -> int:
        raise ValueError("a bug")

    broken = reaper.Chore("broken", fail, "things")
    monkeypatch.setattr(reaper, "CHORES", (broken, *reaper.CHORES))
    overdue()

    with pytest.raises(CommandError, match=r"broken \(ValueError: a bug\)"):
        call_command("runreaper", "--once")

    assert all_recovered()


def test_once_without_a_database_ends_with_an_error_in_one_line(tmp_path):
    nowhere = processes.environment(f"sqlite:///{tmp_path}/none/db.sqlite3")

    with processes.manage(tmp_path, nowhere, "runreaper", "--once", "--skip-checks") as once:
        assert once.wait() != 0

    assert "The database failed: " in once.output
    assert "Traceback" not in once.output


def test_only_does_the_chores_named_and_no_others(capsys):
    overdue()
    WorkerFactory(silent=True)

    call_command("runreaper", "--once", "--only", "dead-workers", "--only", "timeouts")

    assert "1 workers declared dead" in capsys.readouterr().out
    assert Job.objects.get().state == State.ACTIVE


@pytest.mark.parametrize(
    "wrong", [["--only", "everything"], *(["--interval", text] for text in ("-1", "nan", "inf"))]
)
def test_arguments_that_make_no_sense_are_refused(wrong):
    with pytest.raises(CommandError):
        call_command("runreaper", "--once", *wrong)


# The loop


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_works_until_it_is_asked_to_stop_and_ends_with_zero(runreaper, how):
    with runreaper("--interval", "0.05") as one:
        one.wait_for("The reaper runs every 0.05 s.")
        for _ in range(2):
            overdue()
            processes.eventually(all_recovered, lambda: one.output)
        one.process.send_signal(how)
        assert one.wait() == 0, one.output

    # One round may find both jobs, on a slow machine.
    assert " reservations expired" in one.output
    assert one.output.strip().endswith("The reaper stops.")
    assert "Traceback" not in one.output


def test_the_interval_comes_from_the_settings_and_the_sign_of_life_from_the_process(runreaper):
    with runreaper(REAPER_INTERVAL=0.3) as one:
        one.wait_for("The reaper runs every 0.3 s.")
        processes.eventually(Reaper.objects.exists, lambda: one.output)
        assert Reaper.objects.get().name.endswith(f":{one.process.pid}")
        assert one.terminate() == 0


def test_a_reaper_that_is_stopped_in_the_middle_leaves_nothing_half_done(runreaper):
    overdue(1500)

    with runreaper("--interval", "0.05") as one:
        processes.eventually(
            lambda: Job.objects.filter(state=State.AVAILABLE).exists(), lambda: one.output
        )
        assert one.terminate() == 0, one.output
    with runreaper("--once", name="next") as following:
        assert following.wait() == 0

    assert all_recovered()
    assert JobError.objects.count() == 1500, "one error for each job, whichever reaper recovered it"


def test_two_reapers_at_once_do_everything_once(runreaper):
    with (
        runreaper("--interval", "0.01", name="one") as one,
        runreaper("--interval", "0.01", name="two") as two,
    ):
        one.wait_for("The reaper runs")
        two.wait_for("The reaper runs")
        for _ in range(3):
            overdue(300)
            for worker in WorkerFactory.create_batch(10, silent=True):
                held(3, reserved_by=worker.pk)
        processes.eventually(all_recovered, lambda: one.output + two.output)
        assert (one.terminate(), two.terminate()) == (0, 0), one.output + two.output

    assert JobError.objects.filter(type="visibility_timeout").count() == 900
    assert JobError.objects.filter(type="worker_death").count() == 90
    assert set(Job.objects.values_list("attempt", flat=True)) == {2}
    assert "Traceback" not in one.output + two.output


# A database that goes away (PostgreSQL)


def end_other_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return len(cursor.fetchall())


def let_in(allowed: bool) -> None:
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}")


@pytest.mark.postgres
def test_it_waits_for_a_database_that_is_away_and_goes_on_when_it_is_back(runreaper):
    with runreaper("--interval", "0.05") as one:
        one.wait_for("The reaper runs")
        processes.eventually(Reaper.objects.exists)
        let_in(False)
        try:
            processes.eventually(end_other_connections)
            one.wait_for("Database trouble, trying again in 1 s")
            assert one.process.poll() is None, one.output
        finally:
            let_in(True)
        overdue()
        processes.eventually(all_recovered, lambda: one.output)
        assert one.terminate() == 0, one.output


@pytest.mark.postgres
def test_a_connection_lost_between_two_rounds_costs_nothing(runreaper):
    with runreaper("--interval", "0.05") as one:
        processes.eventually(Reaper.objects.exists)
        for _ in range(3):
            end_other_connections()
            overdue()
            processes.eventually(all_recovered, lambda: one.output)
        assert one.terminate() == 0, one.output


@pytest.mark.postgres
def test_it_can_be_stopped_while_the_database_is_away(runreaper):
    with runreaper("--interval", "0.05") as one:
        processes.eventually(Reaper.objects.exists)
        let_in(False)
        try:
            processes.eventually(end_other_connections)
            one.wait_for("Database trouble")
            assert one.terminate() == 0, one.output
        finally:
            let_in(True)


@pytest.mark.parametrize("state", ["away", "not migrated"])
def test_database_trouble_is_a_warning_in_one_line_that_says_what_to_do(tmp_path, state):
    place = tmp_path / ("none/db.sqlite3" if state == "away" else "empty.sqlite3")
    environment = processes.environment(f"sqlite:///{place}") | {"DJANGO_LOG_LEVEL": "WARNING"}

    with processes.manage(tmp_path, environment, "runreaper", "--skip-checks") as one:
        one.wait_for("WARNING workers.reaper: Database trouble, trying again in 1 s. The database")
        assert one.terminate() == 0, one.output

    assert ("run 'manage.py migrate'" in one.output) is (state == "not migrated")
    assert "Traceback" not in one.output


# Signs of life


@pytest.mark.parametrize("command", ["runreaper", "runagq", "runrota"])
def test_what_runs_for_long_leaves_a_file_that_stays_young(database_url, tmp_path, command):
    file = tmp_path / "alive"
    port = () if command == "runreaper" else ("--port", str(processes.free_port()))
    environment = processes.environment(database_url)
    arguments = (command, *port, "--alive-file", str(file))

    with processes.manage(tmp_path, environment, *arguments) as started:
        processes.eventually(
            lambda: file.exists() and file.read_text() == "running", lambda: started.output
        )
        os.utime(file, (0, 0))
        processes.eventually(lambda: file.stat().st_mtime > 0, lambda: started.output)
        assert started.terminate() == 0
        assert file.read_text() == ""


def test_systemd_hears_when_a_reaper_has_begun_and_that_it_ends(database_url, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "systemd"))
        systemd.settimeout(processes.PATIENCE)
        environment = processes.environment(database_url)
        environment |= {"NOTIFY_SOCKET": systemd.getsockname()}
        heard: set[bytes] = set()
        with processes.manage(tmp_path, environment, "runreaper") as started:
            while not {b"READY=1", b"WATCHDOG=1"} <= heard:
                heard.add(systemd.recv(100))
            started.process.terminate()
            while b"STOPPING=1" not in heard:
                heard.add(systemd.recv(100))
            assert started.wait() == 0


def test_a_file_that_cannot_be_left_is_refused_at_once(database_url, tmp_path):
    with pytest.raises(CommandError, match="--alive-file"):
        call_command("runreaper", "--once", "--alive-file", str(tmp_path / "nowhere" / "alive"))


@pytest.mark.postgres
def test_a_chore_that_hangs_is_named_and_the_others_go_on(transactional_db, monkeypatch, caplog):
    """The database holds a lock that is never released."""
    monkeypatch.setattr(reaper, "STUCK", 0.1)
    overdue()
    with another_connection() as other:
        other.execute("LOCK TABLE ojs_workers_worker")
        done = reaper.sweep(["dead-workers", "expired-reservations", "due-jobs"])

    assert done == {}
    assert "The chore dead-workers has been waiting for the database" in caplog.text
    assert reaper.sweep(["expired-reservations"]) == {"expired-reservations": 1}
