"""`manage.py fleet`: for people at a shell, and for deployment scripts."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command, execute_from_command_line

from jobs.models import OperatorAction
from tests.factories import JobFactory, WorkerFactory, ago, ahead
from tests.workers.fleets import directives
from workers.models import FleetOperation, Worker

pytestmark = pytest.mark.django_db


def fleet(*arguments: str) -> str:
    out = io.StringIO()
    call_command("fleet", *arguments, stdout=out)
    return out.getvalue()


def refused(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as problem:
        fleet(*arguments)
    return problem.value


def test_what_a_worker_says_of_itself_commands_no_terminal():
    evil = "h\x1b]0;title\x07\r\nw2  \x9b31m\u202e"
    WorkerFactory(pk="w1", hostname=evil, labels=[evil])

    shown = fleet("status")

    assert len(shown.splitlines()) == 2
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(shown)
    as_json = fleet("status", "--format", "json")
    assert not {"\x1b", "\x9b", "\u202e"} & set(as_json)
    assert json.loads(as_json)["workers"][0]["hostname"] == evil


@pytest.mark.parametrize("verb", ["quiet", "resume", "terminate", "drain"])
def test_an_order_without_any_selection_is_refused(verb):
    WorkerFactory()

    assert refused(verb).returncode == 2
    assert list(directives().values()) == [""]
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    "selection",
    [
        ["--label", "eu", "--label", "blue"],
        ["--host", "a"],
        ["--version", "py/2"],
        ["--queue", "mail"],
        ["--worker", "w1"],
        ["--label", "eu", "--host", "a"],
    ],
)
def test_an_order_concerns_the_selected_workers_alone(selection):
    WorkerFactory(
        worker_id="w1", labels=["eu", "blue"], hostname="a", version="py/2", queues=["mail"]
    )
    WorkerFactory(worker_id="w2", labels=["eu"], hostname="b", version="py/1")

    assert "1 asked" in fleet("quiet", *selection, "--reason", "Deploy")

    assert directives() == {"w1": "quiet", "w2": ""}
    row = OperatorAction.objects.get()
    assert (row.source, row.verb, row.count, row.reason) == ("shell", "quiet_worker", 1, "Deploy")


def test_everything_is_asked_for_expressly():
    WorkerFactory(worker_id="a"), WorkerFactory(worker_id="b")

    document = json.loads(fleet("terminate", "--all", "--format", "json"))

    assert document == {
        "verb": "terminate",
        "converged": True,
        "asked": 2,
        "reported": 0,
        "relayed": 0,
        "enforced": 0,
        "waiting": [],
        "gone": [],
    }
    assert set(directives().values()) == {"terminate"}


def test_no_worker_matches_and_nothing_happens():
    WorkerFactory(labels=["eu"])
    WorkerFactory(dead=True, labels=["us"])

    assert refused("quiet", "--label", "us").returncode == 4


def test_waiting_ends_when_the_time_is_up():
    WorkerFactory(worker_id="deaf")

    problem = refused("quiet", "--all", "--wait", "--timeout", "0")

    assert problem.returncode == 3
    assert "deaf" in str(problem)


def test_workers_that_cannot_report_are_not_waited_for_once_they_are_heard():
    for protocol in ("agq", "rota"):
        WorkerFactory(protocol=protocol, last_heartbeat_at=ahead(60))

    words = fleet("quiet", "--all", "--wait")

    assert "2 asked, 0 report it, relayed to 1 that report no state, enforced at fetch" in words


def test_status_lists_what_a_script_needs():
    worker = WorkerFactory(worker_id="w1", labels=["eu"], directive="quiet")
    JobFactory(active=True, reserved_by=worker.pk)
    WorkerFactory(dead=True)

    (row,) = json.loads(fleet("status", "--format", "json"))["workers"]

    assert row["worker_id"] == "w1"
    assert (row["state"], row["desired_state"], row["labels"]) == ("running", "quiet", ["eu"])
    assert row["active_jobs"] == 1
    assert "w1" in fleet("status", "--label", "eu")
    assert json.loads(fleet("status", "--label", "us", "--format", "json")) == {"workers": []}


def test_a_drain_is_begun_and_its_numbers_are_checked():
    for number in range(5):
        WorkerFactory(worker_id=f"w{number}", labels=["eu"])

    document = json.loads(
        fleet("drain", "--label", "eu", "--max-unavailable", "40%", "--format", "json")
    )

    assert document["state"] == "running"
    assert sorted(document["workers"].values()) == ["draining"] * 2 + ["waiting"] * 3
    assert refused("drain", "--label", "eu").returncode == 1, "they have an operation"
    FleetOperation.objects.all().delete()
    assert refused("drain", "--label", "eu", "--max-unavailable", "all").returncode == 2


WRONG = [
    ["--max-unavailable", "abc"],
    ["--max-unavailable", "101%"],
    ["--floor", "-1"],
    ["--floor", "mail=2,lots"],
    ["--limit", "soon"],
    ["--limit", "1e999"],
    ["--timeout", "nan"],
    ["--then", "nothing"],
]


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_wrong_arguments_have_an_exit_code_of_their_own(wrong):
    problem = refused("drain", "--all", *wrong)

    assert problem.returncode == 2, "not 4, although no worker matches"
    assert wrong[-1].rpartition(",")[2] in str(problem)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--floor", "-1"], "argument --floor: floor must be a number or a percentage"),
        (["--colour", "blue"], "unrecognized arguments: --colour blue"),
    ],
)
def test_at_a_shell_wrong_arguments_end_with_the_same_code(capsys, wrong, words):
    with pytest.raises(SystemExit) as end:
        execute_from_command_line(["manage.py", "fleet", "drain", "--all", *wrong])

    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_the_help_shows_what_is_typed(capsys):
    for words in (["--help"], ["drain", "--help"]):
        with pytest.raises(SystemExit):
            execute_from_command_line(["manage.py", "fleet", *words])

    text = capsys.readouterr().out
    assert "\n    manage.py fleet status --format json\n" in text
    assert "--max-unavailable N|N%\n" in text and "%%" not in text


def test_status_is_a_table_for_people():
    WorkerFactory(worker_id="w1", hostname="a", labels=["eu"], concurrency=4)
    WorkerFactory(worker_id="worker-2", hostname="", last_heartbeat_at=ago(20))

    header, first, second = fleet("status").splitlines()

    assert header.split() == ["WORKER", "HOST", "CONDITION", "JOBS", "HEARTBEAT", "LABELS"]
    places = [header.index(word) for word in header.split()]
    assert [first[place:].split("  ")[0] for place in places][:4] == ["w1", "a", "running", "0/4"]
    assert re.fullmatch(r"\d\d+ s ago +-", second[places[4] :])


def test_a_drain_that_is_waited_for_needs_no_reaper(monkeypatch):
    from workers.fleet import rolling

    WorkerFactory(worker_id="w")
    drive = rolling.drive

    def drive_and_leave() -> int:
        # Between two checks the worker obeys.
        for wanted, given in (("quiet", {"state": "quiet"}), ("terminate", GONE)):
            Worker.objects.filter(directive=wanted).update(**given)
        return drive()

    monkeypatch.setattr(rolling, "drive", drive_and_leave)
    assert "completed, 1 finished" in fleet("drain", "--all", "--wait")


GONE: dict[str, Any] = {"state": "terminated", "directive": ""}
