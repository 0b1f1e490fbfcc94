"""What holds for every command of `manage.py`."""

from __future__ import annotations

import io
from importlib import import_module

import pytest
from django.core.management import BaseCommand, CommandError, call_command, find_commands
from django.db import OperationalError

from jobs.management import base
from tests import processes
from tests.database import connection
from tests.processes import ROOT
from workers.runtime.process import UNREGISTERED

OURS = [
    f"{app}.management.commands.{name}"
    for app in ("jobs", "workers", "ojs_project")
    for name in find_commands(str(ROOT / app / "management"))
]
QUIET = {"force_color": False, "no_color": True, "skip_checks": True}
JOB = "01a22517-8581-76b8-92b1-fcd0f9209255"
ASKING = [
    ["checkalerts"],
    ["createapikey", "--name", "billing"],
    # Groups are in the site's own database.
    pytest.param(["createojsgroups"], marks=pytest.mark.one_database),
    ["createsessionkey", "worker-001"],
    ["fleet", "drain", "--all"],
    ["fleet", "status"],
    ["jobs", "cancel", JOB],
    ["jobs", "enqueue", "email.send"],
    ["jobs", "erase", "--meta", "customer=p1"],
    ["jobs", "list"],
    ["jobs", "retry", "--queue", "mail"],
    ["jobs", "run", JOB],
    ["jobs", "show", JOB],
    ["jobs", "tail", "--once"],
    ["registerspecs", "email.send=1"],
    ["rotateapikey", "billing"],
    ["runreaper", "--once"],
]
"""Commands that ask the database."""


def the_line(output: str) -> str:
    (line,) = output.strip().splitlines()
    return line


@pytest.mark.parametrize("module", OURS)
def test_every_command_has_the_base_that_says_what_the_database_lacks(module):
    assert issubclass(import_module(module).Command, base.Command)


@pytest.mark.parametrize("module", OURS)
def test_no_command_prints_control_characters_of_data(module):
    out, err = io.StringIO(), io.StringIO()

    class Printing(import_module(module).Command):
        def handle(self, *args: object, **options: object) -> str:
            self.stdout.write("a\x1b[31m")
            self.stderr.write("b\x9b31m\n")
            return "c\x07 \u202e\n"

    command = Printing(stdout=out, stderr=err)
    BaseCommand.execute(command, **QUIET)
    assert out.getvalue() == "a\\u001b[31m\nc\\u0007 \\u202e\n"
    assert err.getvalue() == "b\\u009b31m\n"
    redirected = io.StringIO()
    Printing().execute(stdout=redirected, stderr=err, **QUIET)
    assert redirected.getvalue() == out.getvalue()


@pytest.mark.django_db
@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_a_database_that_fails_is_said_in_one_line(words):
    def away(*args: object) -> None:
        raise OperationalError("connection refused\n\tIs the server running?")

    with connection.execute_wrapper(away), pytest.raises(CommandError) as refused:
        call_command(*words)

    assert str(refused.value) == "The database failed: connection refused"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["createapikey", "--name", "x"], ["jobs", "list"], ["runreaper", "--once"]],
    ids=" ".join,
)
def test_without_its_tables_a_command_says_to_migrate(words, tmp_path):
    environment = processes.environment(f"sqlite:///{tmp_path}/empty.sqlite3")

    with processes.manage(tmp_path, environment, *words) as command:
        assert command.wait() == 1

    line = the_line(command.output)
    assert (
        "lacks tables or columns of this version: run 'manage.py migrate'. (no such table" in line
    )


@pytest.mark.parametrize("words", [["authorization", "--update"], ["openapi"]], ids=" ".join)
def test_a_file_that_cannot_be_written_is_said_in_one_line(words, tmp_path):
    nowhere = tmp_path / "none" / "page.md"

    with pytest.raises(CommandError, match=f"{nowhere} cannot be "):
        call_command(*words, str(nowhere))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=" ".join)
def test_a_burst_ends_with_an_error_without_its_tables(options, tmp_path):
    environment = processes.environment(f"sqlite:///{tmp_path}/empty.sqlite3")
    words = ["runjobworker", "--burst", *options]

    with processes.manage(tmp_path, environment, *words) as burst:
        assert burst.wait() == UNREGISTERED

    assert "The server is unavailable: The database lacks tables or columns" in burst.output
    assert "Traceback" not in burst.output


@pytest.mark.slow
def test_a_burst_ends_with_an_error_without_its_server(tmp_path):
    environment = processes.environment(f"sqlite:///{tmp_path}/unused.sqlite3")
    words = ["runjobworker", "--burst", "--url", "http://127.0.0.1:1"]

    with processes.manage(tmp_path, environment, *words) as burst:
        assert burst.wait() == UNREGISTERED

    assert "The server is unavailable: " in burst.output
