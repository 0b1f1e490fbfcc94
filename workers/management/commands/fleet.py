"""Send orders to workers from a shell or a deployment script.

    manage.py fleet quiet --label blue --wait --timeout 60
    manage.py fleet drain --label blue --max-unavailable 20% --floor 50% --wait --timeout 900
    manage.py fleet status --format json

Exit codes: 0 done (with --wait: every worker has followed); 1 refused or failed; 2 wrong arguments;
3 --timeout passed before it was done; 4 no worker matches.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import orjson
from django.core.management.base import CommandError, CommandParser, DjangoHelpFormatter
from django.db.models.functions import Now

from jobs.access.audit import of_shell
from jobs.errors import InvalidRequest, OJSError
from jobs.management import base
from jobs.spec.durations import LONGEST, parse_duration
from jobs.spec.error_texts import in_one_line
from jobs.spec.timestamps import format_timestamp
from workers.fleet import drain, rolling
from workers.fleet import orders as fleet
from workers.fleet.condition import condition, in_hand
from workers.lifecycle import WorkerState
from workers.models import Answer, FleetOperation, OperationState

DIRECTIVES = {
    "quiet": WorkerState.QUIET,
    "resume": WorkerState.RUNNING,
    "terminate": WorkerState.TERMINATE,
}
HELP = {
    "quiet": "give them no more jobs",
    "resume": "withdraw a quiet",
    "terminate": "let them finish their jobs and stop",
    "drain": "a few at a time: quiet, wait until idle, terminate",
    "status": "list them",
}
REFUSED, WRONG, TIMED_OUT, NO_MATCH = 1, 2, 3, 4
LOOK_EVERY = 0.5
"""Seconds between two checks while waiting."""


def seconds(text: str) -> float:
    """`90`, or a duration of ISO 8601: `PT15M`."""
    try:
        found = float(text) if text[:1].isdigit() else parse_duration(text).total_seconds()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90 or PT15M") from None
    if not found <= LONGEST.total_seconds():
        raise argparse.ArgumentTypeError(f"{text!r} is too long")
    return found


def _readable(read: Callable[[str], Any]) -> Callable[[str], str]:
    """Let the parser reject what the drain could not read, before any worker is queried."""

    def check(text: str) -> str:
        try:
            read(text)
        except InvalidRequest as problem:
            raise argparse.ArgumentTypeError(problem.message) from None
        return text

    return check


class Formatter(argparse.RawDescriptionHelpFormatter, DjangoHelpFormatter):
    """Keeps the examples on their own lines."""


class Parser(CommandParser):
    """Uses the exit code for wrong arguments under `call_command` too."""

    def error(self, message: str) -> Any:
        if not self.called_from_command_line:
            raise CommandError(f"Error: {message}", returncode=WRONG)
        super().error(message)


class Command(base.Command):
    help = __doc__ or ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("formatter_class", Formatter)
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, parser_class=Parser)
        for verb, text in HELP.items():
            sub = verbs.add_parser(verb, help=text, description=text)
            _selection(sub)
            sub.add_argument("--format", choices=("text", "json"), default="text")
            if verb != "status":
                sub.add_argument("--reason", default="", help="for the record")
                sub.add_argument("--wait", action="store_true", help="until all have followed")
                sub.add_argument("--timeout", type=seconds, help="maximum seconds to wait")
            if verb == "drain":
                _drain_options(sub)

    def handle(self, *args: Any, **options: Any) -> None:
        self.options = options
        self.is_json = options["format"] == "json"
        selector = fleet.Selector(
            labels=tuple(options["label"]),
            hosts=tuple(options["host"]),
            versions=tuple(options["version_name"]),
            queues=tuple(options["queue"]),
            worker_ids=tuple(options["worker"]),
            projects=tuple(options["project"]),
        )
        verb = options["verb"]
        if verb == "status":
            self._status(selector)
            return
        if selector.is_empty and not options["all"]:
            self._fail("Select workers: --label, --host, …; or --all.", WRONG)
        if not selector.workers().exists():
            self._fail("No live worker matches.", NO_MATCH)
        if verb == "drain":
            self._drain(selector)
        else:
            self._direct(selector, DIRECTIVES[verb])

    # The verbs

    def _status(self, selector: fleet.Selector) -> None:
        rows: Any = selector.workers().annotate(in_hand=in_hand(), now=Now())
        rows = rows.annotate(condition=condition())
        if self.is_json:
            self._print({"workers": [_document(worker) for worker in rows]})
            return
        lines = [HEADER, *map(_line, rows)]
        if not any(worker.project for worker in rows):
            lines = [(name, *rest) for name, _project, *rest in lines]
        for line in _columns(lines):
            self.stdout.write(line)

    def _direct(self, selector: fleet.Selector, directive: WorkerState) -> None:
        given = fleet.order(
            selector.workers(),
            directive,
            actor=of_shell(),
            reason=self.options["reason"],
            selection=selector.document() or {"all": True},
        )
        progress: dict[str, Any] = {
            "asked": len(given.heard),
            "reported": 0,
            "relayed": 0,
            "enforced": 0,
            "waiting": [],
            "gone": [],
        }
        is_over = True
        if given.action_id is not None and given.heard:
            action_id = given.action_id

            def look() -> bool:
                found = fleet.convergence(action_id)
                progress.update(
                    reported=found.count(Answer.REPORTED),
                    relayed=found.count(Answer.RELAYED),
                    enforced=found.count(Answer.ENFORCED),
                    waiting=[row[0].worker_id for row in found.rows if row[2] == Answer.WAITING],
                    gone=[row[0].worker_id for row in found.rows if row[2] == Answer.GONE],
                )
                self._show(found.followed, len(found.rows))
                return found.is_over

            is_over = self._wait(look) if self.options["wait"] else True
        self._tell(
            {"verb": self.options["verb"], "converged": is_over and not progress["waiting"]}
            | progress,
            _in_words(progress),
        )
        if not is_over:
            self._fail(f"Not yet heard: {', '.join(progress['waiting'][:10])}", TIMED_OUT)

    def _drain(self, selector: fleet.Selector) -> None:
        operation = self._started(selector)
        state: dict[str, Any] = {}

        def look() -> bool:
            # As the reaper does; a reaper elsewhere does no harm.
            rolling.drive()
            fresh = FleetOperation.objects.get(pk=operation.pk)
            steps = list(fresh.steps.values_list("worker_id", "phase", "is_open"))
            finished = sum(not is_open for _, _, is_open in steps)
            state.update(
                operation=fresh.pk,
                state=str(fresh.state),
                waits_for=fresh.waits_for,
                finished=finished,
                workers={worker_id: phase for worker_id, phase, _ in steps},
            )
            self._show(finished, len(steps))
            return fresh.is_finished

        waits = self.options["wait"]
        is_over = self._wait(look) if waits else look()
        words = f"Operation {state['operation']}: {state['state']}, {state['finished']} finished."
        self._tell({"verb": "drain"} | state, words)
        if waits and not is_over:
            self._fail(f"Not finished in time. {state['waits_for']}".strip(), TIMED_OUT)
        if state["state"] == OperationState.ABORTED:
            self._fail("The operation was aborted.", REFUSED)

    def _started(self, selector: fleet.Selector) -> FleetOperation:
        options = self.options
        try:
            return drain.start(
                list(selector.workers().values_list("pk", flat=True)),
                actor=of_shell(),
                max_unavailable=options["max_unavailable"],
                floor=options["floor"],
                idle_limit=None
                if options["limit"] is None
                else timedelta(seconds=options["limit"]),
                terminates=options["then"] == "terminate",
                replacement_label=options["replacement_label"],
                reason=options["reason"],
                selection=selector.document() or {"all": True},
            )
        except OJSError as problem:
            self._fail(problem.message, REFUSED)

    # Waiting and reporting

    def _wait(self, look: Callable[[], bool]) -> bool:
        """Check repeatedly until `look` returns True; False if the time is up first."""
        limit = self.options["timeout"]
        deadline = None if limit is None else time.monotonic() + limit
        pause = threading.Event()
        while not look():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            pause.wait(LOOK_EVERY)
        return True

    def _show(self, done: int, whole: int) -> None:
        if self.options["wait"] and sys.stderr.isatty():
            bar = "#" * (20 * done // max(whole, 1))
            self.stderr.overwrite(f"[{bar:<20}] {done}/{whole}")
            if done == whole:
                self.stderr.write("")

    def _tell(self, document: dict[str, Any], words: str) -> None:
        if self.is_json:
            self._print(document)
        else:
            self.stdout.write(words)

    def _print(self, document: Any) -> None:
        self.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())

    def _fail(self, message: str, code: int) -> NoReturn:
        raise CommandError(message, returncode=code)


def _selection(parser: Any) -> None:
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--label", **several, help="workers with this label (repeat: all of them)")
    parser.add_argument("--host", **several, help="workers on this host (repeat: any)")
    parser.add_argument(
        "--version", dest="version_name", **several, help="workers of this version (repeat: any)"
    )
    parser.add_argument("--queue", **several, help="workers that serve this queue (repeat: any)")
    parser.add_argument(
        "--worker",
        **several,
        metavar="ID",
        help="stored under this id, or, with --project, with this id in it (repeat: any)",
    )
    parser.add_argument("--project", **several, help="workers of this project (repeat: any)")
    parser.add_argument("--all", action="store_true", help="every live worker")


def _drain_options(parser: Any) -> None:
    parser.add_argument(
        "--max-unavailable",
        type=_readable(lambda text: drain.amount(text, 0, "max-unavailable", up=False)),
        default="1",
        metavar="N|N%",
        help="how many at a time (default: 1)",
    )
    parser.add_argument(
        "--floor",
        type=_readable(lambda text: drain.floors(text, (), {})),
        default="",
        help="running capacity every queue keeps: 4, 50%%, or mail=2,default=50%%",
    )
    parser.add_argument("--limit", type=seconds, help="seconds a worker has to finish its jobs")
    parser.add_argument("--then", choices=("terminate", "hold"), default="terminate")
    parser.add_argument(
        "--replacement-label", default="", help="continue only while as many new workers have it"
    )


HEADER = ("WORKER", "PROJECT", "HOST", "CONDITION", "JOBS", "HEARTBEAT", "LABELS")


def _in_words(progress: dict[str, Any]) -> str:
    words = f"{progress['asked']} asked, {progress['reported']} report it"
    if progress["relayed"]:
        words += f", relayed to {progress['relayed']} that report no state"
    if progress["enforced"]:
        words += f", enforced at fetch for {progress['enforced']}"
    return f"{words}."


def _line(worker: Any) -> tuple[str, ...]:
    asked = "" if worker.desired_state == worker.state else f" → {worker.desired_state}"
    return (
        worker.pk,
        worker.project or "-",
        worker.hostname or "-",
        f"{worker.condition}{asked}",
        f"{worker.in_hand}/{worker.concurrency or '?'}",
        f"{max(0, round((worker.now - worker.last_heartbeat_at).total_seconds()))} s ago",
        " ".join(worker.labels) or "-",
    )


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines, each column as wide as its widest text."""
    rows = [[in_one_line(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _document(worker: Any) -> dict[str, Any]:
    return {
        "worker_id": worker.pk,
        "project": worker.project or None,
        "state": str(worker.state),
        "desired_state": str(worker.desired_state),
        "condition": str(worker.condition),
        "directive": str(worker.directive),
        "hostname": worker.hostname,
        "pid": worker.pid,
        "labels": worker.labels,
        "queues": worker.queues,
        "version": worker.version,
        "protocol": worker.protocol,
        "concurrency": worker.concurrency,
        "active_jobs": worker.in_hand,
        "last_heartbeat_at": format_timestamp(worker.last_heartbeat_at),
    }
