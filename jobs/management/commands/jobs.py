"""View jobs and act on them from a shell.

    manage.py jobs list --state discarded --queue mail
    manage.py jobs show 019539a4-0000-7000-8000-000000000001
    manage.py jobs enqueue email.send '["ann@example.com"]' --queue mail
    manage.py jobs retry --state discarded --type email.send
    manage.py jobs run 019539a4-0000-7000-8000-000000000001
    manage.py jobs tail --type email.send
    manage.py jobs erase --meta customer=c-17

`--json` prints JSON: an array or an object; of `tail`, an object on each line.
"""

from __future__ import annotations

import argparse
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson
from django.core.management.base import CommandError, CommandParser, DjangoHelpFormatter

from jobs import engine, handles, history, producer
from jobs.access.audit import Tally, of_shell, record_action
from jobs.errors import OJSError
from jobs.handles import Contents, JobHandle
from jobs.management import base
from jobs.models import Event, Job
from jobs.record import events
from jobs.spec.error_texts import in_lines, in_one_line
from jobs.spec.lifecycle import Event as Transition
from jobs.spec.lifecycle import State, sources
from jobs.spec.timestamps import format_timestamp
from jobs.store.database import atomic

HELP = {
    "list": "list jobs, newest first",
    "show": "show one job, with its errors",
    "enqueue": "enqueue a job",
    "retry": "give discarded jobs, or cancelled ones named by id, fresh attempts",
    "run": "make jobs that wait for their time, a retry or an activation available now",
    "cancel": "cancel unfinished jobs",
    "erase": "delete finished jobs and every trace of what they were about",
    "tail": "show what happens to jobs, as it happens, until Ctrl-C",
}
BATCH = 500
LOOK_EVERY = 0.5
"""Seconds between two looks of `tail`."""
WIDTH = 80
"""Width of the output if it is not a terminal."""
WAITING = [
    *sources(Transition.TIMER, State.AVAILABLE),
    *sources(Transition.ACTIVATE, State.AVAILABLE),
]
UNFINISHED = sorted(
    state for state in State if state not in ("completed", "cancelled", "discarded")
)


def number(text: str) -> int:
    """Parse how many there may be at most."""
    value = int(text)
    if not 0 <= value <= handles.MOST:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to {handles.MOST}")
    return value


class Formatter(argparse.RawDescriptionHelpFormatter, DjangoHelpFormatter):
    """Keeps the examples on their own lines."""


class Command(base.Command):
    help = __doc__ or ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("formatter_class", Formatter)
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        for verb, text in HELP.items():
            sub = verbs.add_parser(verb, help=text, description=text)
            sub.add_argument("--json", action="store_true", help="print JSON")
            if verb == "show":
                sub.add_argument("id")
            if verb in ("retry", "run", "cancel", "erase"):
                sub.add_argument("id", nargs="*")
                sub.add_argument("--reason", default="", help="for the record")
            if verb == "erase":
                sub.add_argument(
                    "--meta",
                    action="append",
                    default=[],
                    metavar="NAME=VALUE",
                    help="the jobs whose meta has this text; with several names, all of them",
                )
            if verb == "enqueue":
                sub.add_argument("type")
                sub.add_argument("arguments", nargs="?", default="[]", help="a JSON array")
                sub.add_argument("--queue")
                sub.add_argument("--options", default="{}", help="more options, a JSON object")
            if verb in ("list", "retry", "run", "cancel", "tail"):
                sub.add_argument("--type")
                sub.add_argument("--queue")
            if verb in ("list", "retry", "run", "cancel"):
                sub.add_argument("--tag")
                sub.add_argument("--state", choices=[str(state) for state in State])
            if verb == "list":
                sub.add_argument("--limit", type=number, default=25)
            if verb == "tail":
                sub.add_argument("--once", action="store_true", help="show the last ones and end")
                sub.add_argument(
                    "--last", type=number, default=10, help="of the past (default: 10)"
                )

    def handle(self, *args: Any, **options: Any) -> None:
        self.options = options
        self._said = ""
        try:
            getattr(self, f"_{options['verb']}")()
        except OJSError as problem:
            raise CommandError(problem.message) from None

    # Read

    def _list(self) -> None:
        found = handles.find(**self._wanted(), limit=self.options["limit"])
        if self.options["json"]:
            self._print([_document(job) for job in found])
            return
        head = ("ID", "TYPE", "QUEUE", "STATE", "ATTEMPT", "CREATED", "ARGS")
        rows = [
            (
                str(job.id),
                job.type,
                job.queue,
                str(job.state),
                f"{job.attempt}/{job.max_attempts}",
                f"{job.created_at:%Y-%m-%d %H:%M}",
                in_lines(orjson.dumps(Contents(job).args).decode()),
            )
            for job in found
        ]
        for line in table([head, *rows], self._width()):
            self.stdout.write(line)

    def _show(self) -> None:
        job = handles.get(self.options["id"])
        document = _document(job, whole=True)
        if self.options["json"]:
            self._print(document)
            return
        widest = max(map(len, document))
        for name, value in document.items():
            if name != "errors" and value not in (None, [], {}):
                text = value if isinstance(value, str) else orjson.dumps(value).decode()
                text = in_one_line(text)
                self.stdout.write(f"{name:<{widest}}  {text}")
        for error in document["errors"]:
            what = in_one_line("Attempt {attempt}: {type}: {message}".format(**error))
            self.stdout.write(f"\n{what}")
            lines = "".join(error["backtrace"] or ()).rstrip().split("\n")
            self.stdout.write("\n".join(map(in_one_line, lines)))

    def _tail(self) -> None:
        rows = self._events()
        newest = list(rows.order_by("-id")[: self.options["last"]])
        seen = (
            newest[0].pk if newest else (events.settled().order_by("-id").first() or Event(pk=0)).pk
        )
        for event in reversed(newest):
            self._tell(event)
        pause = threading.Event()
        try:
            while not self.options["once"]:
                pause.wait(LOOK_EVERY)
                for event in self._events().filter(pk__gt=seen).order_by("id")[:BATCH]:
                    self._tell(event)
                    seen = event.pk
        except KeyboardInterrupt:
            pass

    def _events(self) -> Any:
        rows = events.settled().filter(type__startswith="job.")
        if self.options["type"] is not None:
            rows = rows.filter(job_type=self.options["type"])
        if self.options["queue"] is not None:
            rows = rows.filter(queue=self.options["queue"])
        return rows

    def _tell(self, event: Event) -> None:
        if self.options["json"]:
            (document,) = events.event_documents([event])
            self.stdout.write(orjson.dumps(document).decode())
        else:
            what = event.type.removeprefix("job.")
            line = f"{event.time:%H:%M:%S} {what:<10} {event.subject} {event.job_type}"
            line += f" [{event.queue}]" if event.queue else ""
            line += f" attempt {event.attempt}" if event.attempt else ""
            self.stdout.write(in_one_line(line)[: self._width()])
        self.stdout.flush()

    # Act

    def _enqueue(self) -> None:
        options = self._json("options", dict)
        item = options | {"type": self.options["type"], "args": self._json("arguments", list)}
        if self.options["queue"] is not None:
            item["queue"] = self.options["queue"]
        with atomic():
            (job,) = producer.enqueue_many([item])
            if job is None:
                raise CommandError("An enqueue middleware dropped the job.")
            row = Job.objects.get(pk=job.id)
            record_action(of_shell(), "enqueue_job", [row], selection={"type": job.type})
        if self.options["json"]:
            self._print(_document(job))
        else:
            self.stdout.write(str(job.id))

    def _retry(self) -> None:
        self._act("retry_job", "retried", [State.DISCARDED])

    def _run(self) -> None:
        self._act("run_job", "made available", WAITING)

    def _cancel(self) -> None:
        self._act("cancel_job", "cancelled", UNFINISHED)

    def _erase(self) -> None:
        meta = _members(self.options["meta"])
        # Not the values, which may be what had to be erased.
        chosen = {"meta": sorted(meta)} if meta else {}
        reason = self.options["reason"]
        tally = Tally(of_shell(), "erase_job", kind="job", selection=chosen, reason=reason)
        done = history.erase(
            ids=self.options["id"],
            meta=meta,
            record=tally.add,
            progress=lambda so_far: self._show_progress(f"{so_far.jobs} erased"),
        )
        # Also that nothing was found.
        tally.add(0)
        self._show_progress("")
        left = [str(job_id) for job_id in done.left]
        if self.options["json"]:
            self._print({"jobs": done.jobs, "events": done.events, "left": left})
        else:
            self.stdout.write(f"{done.jobs} erased, with {done.events} events.")
        if left:
            raise CommandError(f"Not finished, and left: {', '.join(left)}")

    def _act(self, verb: str, word: str, states: Collection[str]) -> None:
        """Act on the given jobs, or on all that match, in batches."""
        named = [handles.identified(text) for text in self.options["id"]]
        wanted = self._wanted()
        if not named and not wanted:
            raise CommandError("Say which jobs: ids, or --type, --queue, --tag, --state.")
        if named and wanted:
            raise CommandError("Give ids or conditions, not both.")
        done = 0
        for ids in [named] if named else self._batches(wanted, states):
            with atomic():
                if verb == "retry_job":
                    moved = engine.retry(ids, cancelled=bool(named))
                elif verb == "run_job":
                    moved = len(engine.run_now(ids))
                else:
                    reason = self.options["reason"]
                    moved = len(engine.cancel_jobs(ids, reason=reason))
                rows = list(Job.objects.filter(pk__in=ids).order_by("pk"))
                if moved:
                    record_action(
                        of_shell(), verb, rows, count=moved, reason=self.options["reason"]
                    )
            done += moved
            if not named:
                self._show_progress(f"{done} {word}")
        self._show_progress("")
        if self.options["json"]:
            self._print({word.split()[-1]: done})
        else:
            self.stdout.write(f"{done} {word}.")
        if named and done < len(set(named)):
            raise CommandError(f"{len(set(named)) - done} of the jobs could not be {word}.")

    def _batches(self, wanted: dict[str, Any], states: Collection[str]) -> Iterator[list[Any]]:
        """Yield the ids of the matching jobs, as they are now, a batch at a time."""
        rows = handles.matching(**wanted).filter(state__in=states)
        last = None
        while True:
            batch = rows if last is None else rows.filter(pk__gt=last)
            ids = list(batch.order_by("pk").values_list("pk", flat=True)[:BATCH])
            if not ids:
                return
            yield ids
            last = ids[-1]

    # Arguments and output

    def _wanted(self) -> dict[str, Any]:
        names = ("type", "queue", "tag", "state")
        return {name: self.options[name] for name in names if self.options[name] is not None}

    def _json(self, name: str, kind: type) -> Any:
        try:
            found = orjson.loads(self.options[name])
        except orjson.JSONDecodeError as problem:
            raise CommandError(f"{name}: {self.options[name]!r} is not JSON: {problem}") from None
        if not isinstance(found, kind):
            word = "array" if kind is list else "object"
            raise CommandError(f"{name}: {self.options[name]!r} is no JSON {word}.")
        return found

    def _show_progress(self, text: str) -> None:
        """Say on a terminal how far it is, in place of what was said before."""
        if self.stderr.isatty():
            before, self._said = self._said, text
            if text or before:
                self.stderr.overwrite(text, len(before))

    def _print(self, document: Any) -> None:
        self.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())

    def _width(self) -> int:
        if not self.stdout.isatty():
            return 10_000
        return shutil.get_terminal_size((WIDTH, 24)).columns


def table(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the rows as lines of at most `width`; shortens the last column, then the widest."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = width - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths[1:]) > 8:
        place = len(widths) - 1 if widths[-1] > 8 else widths.index(max(widths[1:]), 1)
        widths[place] = max(8, widths[place] - (sum(widths) - room))
    for row in rows:
        cells = (_cut(text, size).ljust(size) for text, size in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _members(texts: Sequence[str]) -> dict[str, str]:
    """Return the members of `meta` that select jobs to erase.

    Raises:
        CommandError: they may not mean what was typed. A script would take it that all is erased.
    """
    meta: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise CommandError(f"--meta takes NAME=VALUE, and not {text!r}.")
        if name in meta:
            raise CommandError(
                f"--meta names {name!r} twice, and no job has both values: "
                "call the command once for each."
            )
        meta[name] = value
    return meta


def _document(job: JobHandle, *, whole: bool = False) -> dict[str, Any]:
    contents = Contents(job)
    document: dict[str, Any] = {
        "id": str(job.id),
        "type": job.type,
        "queue": job.queue,
        "state": str(job.state),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "priority": job.priority,
        "args": contents.args,
        "meta": job.meta,
        "tags": job.tags,
    }
    for name in ("created_at", "scheduled_at", "expires_at", "started_at", "finished_at"):
        moment: datetime | None = getattr(job, name)
        document[name] = None if moment is None else format_timestamp(moment)
    if whole:
        document["result"] = contents.result
        document["progress"] = job.progress
        document["progress_data"] = job.progress_data
        document["errors"] = [
            {
                "attempt": error.attempt,
                "type": error.type,
                "code": error.code,
                "message": error.message,
                "backtrace": error.backtrace,
                "occurred_at": format_timestamp(error.occurred_at),
                "worker_id": error.worker_id,
            }
            for error in contents.errors
        ]
        document["unreadable"] = contents.unreadable
    return document
