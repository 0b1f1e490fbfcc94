"""`manage.py jobs`: jobs from a shell."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command

import jobs
from jobs import engine
from jobs.engine import Failure
from jobs.management.commands.jobs import table
from jobs.models import Job, JobError, OperatorAction
from tests.factories import JobFactory, ago

pytestmark = pytest.mark.django_db


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("jobs", *words, stdout=out)
    return out.getvalue()


def as_json(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


@pytest.mark.parametrize("words", [("list", "--limit"), ("tail", "--once", "--last")])
@pytest.mark.parametrize("number", ["-1", "99999999999999999999", "x"])
def test_a_number_of_lines_that_makes_no_sense_is_refused(words, number):
    with pytest.raises(CommandError, match=words[-1]):
        run(*words, number)


def test_a_job_is_enqueued_with_its_options():
    job_id = run(
        "enqueue", "email.send", '["ann", 1]', "--queue", "mail", "--options", '{"priority": 7}'
    )

    job = Job.objects.get(pk=job_id.strip())
    assert (job.type, job.args, job.queue, job.priority) == ("email.send", ["ann", 1], "mail", 7)
    assert OperatorAction.objects.get().verb == "enqueue_job"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("enqueue", "email.send", "ann"), "not JSON"),
        (("enqueue", "email.send", "{}"), "array"),
        (("enqueue", "email.send", "[]", "--options", '{"quue": 1}'), "quue"),
        (
            (
                "enqueue",
                "no type!",
            ),
            "type",
        ),
        (("show", "nothing"), "not found"),
        (("cancel",), "Say which"),
        (("retry", "nothing"), "not found"),
    ],
)
def test_what_cannot_be_done_is_said(words, said):
    with pytest.raises(CommandError, match=said):
        run(*words)


def test_jobs_are_listed_newest_first():
    for name in ("a", "b"):
        jobs.enqueue("email.send", [name], queue=f"q-{name}", tags=[name])

    lines = run("list").splitlines()
    assert [line.split()[0] for line in lines[:1]] == ["ID"]
    assert "q-b" in lines[1] and "q-a" in lines[2]
    assert [job["args"] for job in as_json("list", "--tag", "a")] == [["a"]]
    assert [job["queue"] for job in as_json("list", "--limit", "1")] == ["q-b"]
    assert as_json("list", "--state", "active") == []


def test_a_job_is_shown_with_its_errors():
    jobs.enqueue("email.send", ["ann"])
    (job,) = engine.claim(["default"], worker_id="w")
    engine.fail([Failure(job.id, "w", type="ValueError", message="no", backtrace=["a line\n"])])

    text = run("show", str(job.id))
    assert "Attempt 1: ValueError: no" in text and "a line" in text
    shown = as_json("show", str(job.id))
    assert shown["state"] == "retryable" and shown["errors"][0]["message"] == "no"


def test_arguments_command_no_terminal():
    evil = "\x9b31m\u202e\x1b[2J"
    jobs.enqueue("email.send", [evil, {evil: 1}])

    for printed in (run("list"), run("tail", "--once"), run("list", "--json")):
        assert not {"\x1b", "\x9b", "\u202e"} & set(printed)
    assert as_json("list")[0]["args"] == [evil, {evil: 1}]


def test_what_a_worker_reported_forges_no_lines_on_a_terminal():
    jobs.enqueue("email.send", ["ann"])
    (job,) = engine.claim(["default"], worker_id="w")
    text = "no\x1b[31m\r\nState: completed\x9b1m"
    engine.fail([Failure(job.id, "w", type="A\nB", message=text, backtrace=[f"{text}\n", "two\n"])])

    shown = run("show", str(job.id))

    lines = shown.splitlines()
    assert "Attempt 1: A\\nB: no\\x1b[31m\\r\\nState: completed\\x9b1m" in lines
    assert lines[-2:] == ["State: completed\\x9b1m", "two"]
    assert not {"\x1b", "\r", "\x9b"} & set(shown)


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("binary/encrypted", "There is no key ''."),
        ("gzip/plain", "The payload is not gzip data."),
        ("unknown", "There is no codec 'unknown' here."),
    ],
)
def test_a_job_that_cannot_be_decoded_is_shown_as_it_is_stored(encoding, said):
    closed = [{"ojs_encoded": True, "encoding": encoding, "data": "AAAA"}]
    there = run("enqueue", "email.send", '["ann"]').strip()
    away = as_json("enqueue", "pay.charge", json.dumps(closed))
    assert away["args"] == closed

    assert [job["args"] for job in as_json("list")] == [closed, ["ann"]]
    lines = run("list").splitlines()
    assert '"data":"AAAA"' in lines[1] and '["ann"]' in lines[2]
    shown = as_json("show", away["id"])
    assert shown["args"] == closed and shown["unreadable"] == {"args": said}
    assert f'{{"args":"{said}"}}' in run("show", away["id"])
    assert as_json("show", there)["unreadable"] == {}


def test_jobs_are_listed_while_the_storage_of_their_arguments_is_away(monkeypatch):
    run("enqueue", "email.send", '["ann"]')

    def unreachable(*args: Any) -> Any:
        raise ConnectionError("no route\nto the bucket")

    monkeypatch.setattr("jobs.handles.open_args", unreachable)
    (listed,) = as_json("list")
    assert listed["args"] == ["ann"]
    unreadable = as_json("show", listed["id"])["unreadable"]
    assert unreadable == {"args": "ConnectionError: no route to the bucket"}


def test_the_errors_and_the_result_of_a_job_are_shown_although_their_key_is_gone():
    closed = {"ojs_encoded": True, "encoding": "binary/encrypted", "data": "AAAA"}
    job = JobFactory(completed=True, result=closed)
    JobError.objects.create(
        job=job,
        attempt=1,
        type="ValueError",
        message="[encrypted]",
        details=closed,
        occurred_at=ago(1),
    )

    shown = as_json("show", str(job.pk))

    assert shown["result"] == closed
    assert [error["message"] for error in shown["errors"]] == ["[encrypted]"]
    assert sorted(shown["unreadable"]) == ["errors", "result"]
    assert "Attempt 1: ValueError: [encrypted]" in run("show", str(job.pk))


def test_jobs_are_cancelled_by_id_and_by_condition():
    one, two, three = (jobs.enqueue("email.send", queue=name) for name in ("a", "b", "b"))

    assert run("cancel", str(one.id), "--reason", "wrong").strip() == "1 cancelled."
    assert as_json("cancel", "--queue", "b") == {"cancelled": 2}

    assert {handle.refresh().state for handle in (one, two, three)} == {"cancelled"}
    assert {action.verb for action in OperatorAction.objects.all()} == {"cancel_job"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cancel", "--queue", "b"), ["2 cancelled", "3 cancelled", "           ", ""]),
        (("erase", "--meta", "customer=c-17"), ["2 erased", "3 erased", "        ", ""]),
    ],
    ids=lambda value: value[0],
)
def test_a_long_command_shows_how_far_it_is(monkeypatch, words, said):
    monkeypatch.setattr("jobs.management.commands.jobs.BATCH", 2)
    monkeypatch.setattr("jobs.engine.erasure.BATCH", 2)
    made = [jobs.enqueue("a", queue="b", meta={"customer": "c-17"}) for _ in range(3)]
    if words[0] == "erase":
        for job in made:
            job.cancel()
    terminal, file = Terminal(), io.StringIO()

    call_command("jobs", *words, stdout=io.StringIO(), stderr=terminal)

    # The last one makes room for the result, which is written to the same line.
    assert terminal.getvalue().split("\r")[1:] == said
    call_command("jobs", "cancel", "--queue", "b", stdout=io.StringIO(), stderr=file)
    assert file.getvalue() == ""


def test_discarded_jobs_are_retried_and_no_others():
    dead = JobFactory(state="discarded", finished_at=jobs.enqueue("a").created_at, dead_letter=True)

    assert as_json("retry", "--type", dead.type) == {"retried": 1}
    dead.refresh_from_db()
    assert dead.state == "available"
    with pytest.raises(CommandError, match="1 of the jobs"):
        run("retry", str(dead.pk))


def test_jobs_that_wait_are_run_now_and_no_others():
    one, two = JobFactory(scheduled=True, queue="a"), JobFactory(retryable=True, queue="b")

    assert run("run", str(one.pk)).strip() == "1 made available."
    assert as_json("run", "--queue", "b") == {"available": 1}

    for job in (one, two):
        job.refresh_from_db()
        assert job.state == "available"
    assert {action.verb for action in OperatorAction.objects.all()} == {"run_job"}
    with pytest.raises(CommandError, match="1 of the jobs could not be made available"):
        run("run", str(one.pk))


def test_the_tail_shows_what_happened():
    jobs.enqueue("email.send", queue="mail")
    jobs.enqueue("report.build")

    lines = run("tail", "--once").splitlines()
    assert len(lines) == 2 and "enqueued" in lines[0] and "[mail]" in lines[0]
    (event,) = [
        json.loads(line)
        for line in run("tail", "--once", "--type", "email.send", "--json").splitlines()
    ]
    assert event["type"] == "job.enqueued"


def test_the_tail_goes_on_until_it_is_interrupted(monkeypatch):
    jobs.enqueue("before")

    class Pause:
        happens = iter(["one", "two"])

        def wait(self, seconds: float) -> None:
            kind = next(self.happens, None)
            if kind is None:
                raise KeyboardInterrupt
            jobs.enqueue(kind)

    waits = SimpleNamespace(Event=Pause)
    monkeypatch.setattr("jobs.management.commands.jobs.threading", waits)

    lines = run("tail", "--last", "0").splitlines()

    assert [line.split()[3] for line in lines] == ["one", "two"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_fits_its_width(width):
    rows = [("ID", "TYPE", "ARGS"), ("x" * 36, "type." * 10, "a" * 500), ("y", "t", "[]")]

    lines = list(table(rows, width))

    assert max(map(len, lines)) <= width
    assert lines[1].startswith("x" * 36) and "…" in lines[1]
