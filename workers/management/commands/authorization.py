"""Show all permissions: every command of every protocol, its scope and its objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from jobs.access import Binding, OfProject, OfWorker, bindings, commands
from jobs.access import Command as Row
from jobs.management import base
from workers.bindings.shared.switched import Switched

MARK = "<!-- The tables are printed by `manage.py authorization`. -->\n"
FUNCTIONS = {"openapi_json": "documentation.openapi_json", "docs": "documentation.docs"}
PROJECT = {
    OfProject.OWN: "its own",
    OfProject.SHARED: "yes",
    OfProject.NOTHING: "no",
}
WORKER = {
    OfWorker.ANYTHING: "yes",
    OfWorker.SELF: "its workers",
    OfWorker.HELD: "jobs its workers hold",
}


def addresses() -> dict[tuple[str, str], list[str]]:
    """The commands that have URLs, such as `POST /ojs/v1/jobs`, with their aliases."""
    # Imported here: URLs are set up when first needed.
    from workers import urls

    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pattern in urls.urlpatterns:
        view: Any = (pattern.switched_on() if isinstance(pattern, Switched) else pattern).callback
        path = "/" + str(pattern.pattern)
        for kind in ("str:", "path:"):
            path = path.replace(f"<{kind}", "{")
        path = path.replace(">", "}")
        viewset = getattr(view, "cls", None)
        if viewset is None:
            if view.__name__ in FUNCTIONS:
                found[Binding.OJS, FUNCTIONS[view.__name__]].append(f"GET {path}")
            continue
        for method, action in view.actions.items():
            if method != "head":
                name = f"{viewset.resource}.{action}"
                found[viewset.binding, name].append(f"{method.upper()} {path}")
    return dict(found)


def needs(command: Row) -> str:
    if command.is_open:
        return "none"
    return " or ".join(f"`{scope}`" for scope in command.scopes) or "any"


def reference() -> Iterator[str]:
    """The tables of docs/authorization.md, line by line."""
    known = addresses()
    for binding in bindings():
        yield f"### {binding}"
        yield ""
        yield "| command | scope | reads | key of a project | key of a worker or label | redacted |"
        yield "|---|---|---|---|---|---|"
        notes: list[Row] = []
        for row in commands(binding):
            yield _line(row, known.get((binding, row.name), []))
            if row.note:
                notes.append(row)
        if notes:
            yield ""
        for row in notes:
            yield f"* `{row.name}`: {row.note}"
        yield ""


def _line(row: Row, paths: Iterable[str]) -> str:
    named = f"`{row.name}`" + "".join(f"<br>{path}" for path in paths)
    cells = [
        named,
        needs(row),
        "yes" if row.reads else "",
        "yes" if row.is_open else PROJECT[row.of_project],
        WORKER[row.of_worker],
        "yes" if row.hides else "",
    ]
    return f"| {' | '.join(cells)} |"


class Command(base.Command):
    help = __doc__ or ""
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--update", type=Path, metavar="PAGE", help="write the tables into this page instead"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        tables, page = "\n".join(reference()).rstrip(), options["update"]
        if page is None:
            self.stdout.write(tables)
            return
        try:
            before, mark, _ = page.read_text().partition(MARK)
            if mark:
                page.write_text(f"{before}{mark}{tables}\n")
        except (OSError, UnicodeDecodeError) as problem:
            raise CommandError(f"{page} cannot be updated: {problem}") from None
        if not mark:
            raise CommandError(f"{page} has no line {MARK.strip()!r}, behind which they belong.")
