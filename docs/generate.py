"""Writes the reference pages of the site from the code; `make docs` runs it at each build."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import django
from django.conf import settings


def set_up() -> None:
    """Configure Django with what the pages are about, and nothing around it."""
    if not settings.configured:
        settings.configure(
            SECRET_KEY="not used",
            INSTALLED_APPS=["jobs", "workers"],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
            ROOT_URLCONF="workers.urls",
            USE_TZ=True,
        )
        django.setup()


def write(folder: Path) -> None:
    set_up()
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (folder / f"{name}.md").write_text(page())


def cell(text: object) -> str:
    """A text for a cell of a table, on one line."""
    return " ".join(str(text).split()).replace("|", "\\|")


def settings_page() -> str:
    from jobs.management.commands.ojsconfig import reference

    return f"""# Settings

The only setting is the dictionary `OJS` in your settings module. The stand-alone project reads each
option from an environment variable as well (`OJS_HEARTBEAT_TIMEOUT=45`). An option that does not
exist is refused with the name of the closest one. Durations are in seconds. `manage.py ojsconfig`
prints the values in force.

{reference()}
"""


def commands_page() -> str:
    parts = [
        """# Commands

Every command also takes Django's own options (`--settings`, `--verbosity`, …).
"""
    ]
    for name, command in every_command():
        parser = command.create_parser("manage.py", name)
        parts.append(f"## {name}\n\n{cell(parser.description or command.help)}\n")
        parts += described(parser)
    return "\n".join(parts)


def every_command() -> Iterator[tuple[str, Any]]:
    from django.core.management import get_commands, load_command_class

    for name, app in sorted(get_commands().items()):
        if app in ("jobs", "workers"):
            yield name, load_command_class(app, name)


def described(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[str]:
    """The arguments of a command as a table, and those of its subcommands after it."""
    formatter = parser._get_formatter()
    common = {"--version", "--verbosity", "--settings", "--pythonpath", "--traceback"}
    common |= {"--no-color", "--force-color", "--skip-checks", "--help"}
    rows, below = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below += list(action.choices.items())
        elif not common & set(action.option_strings) and action.help != argparse.SUPPRESS:
            names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
            meaning = formatter._expand_help(action) if action.help else ""
            rows.append(f"| {names} | {cell(meaning)} |")
    if rows:
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows, ""])
    for name, parser in below:
        yield f"### {parser.prog.removeprefix('manage.py ')}\n\n{cell(parser.description or '')}\n"
        yield from described(parser, f"{prefix}{name} ")


def http_page() -> str:
    from workers.openapi.document import current

    document = current()
    parts = [
        """# The HTTP API

Each server describes its endpoints with parameters, examples and every refusal: as a page at
`/ojs/v1/docs`, and as an OpenAPI document at `/ojs/v1/openapi.json`. This is the list.
"""
    ]
    for tag in document["tags"]:
        rows = [
            f"| `{method.upper()} {path}` | {cell(endpoint['summary'])} |"
            for path, methods in document["paths"].items()
            for method, endpoint in methods.items()
            if isinstance(endpoint, dict) and tag["name"] in endpoint.get("tags", [])
        ]
        head = f"## {tag['name']}\n\n{tag.get('description', '')}\n\n| endpoint | what |\n|---|---|"
        parts.append("\n".join([head, *rows, ""]))
    return "\n".join(parts)


def signals_page() -> str:
    import jobs.signals
    import workers.signals

    parts = ["# Signals\n"]
    for module in (jobs.signals, workers.signals):
        lines = [f"## {module.__name__}\n", inspect.getdoc(module) or "", ""]
        parts.append("\n".join([*lines, signals_table(module), ""]))
    return "\n".join(parts)


def signals_table(module: ModuleType) -> str:
    """The signals of a module; `docs/django.md` has it too."""
    rows = [f"| `{name}` | {cell(text)} |" for name, text in documented(module)]
    return "\n".join([f"| signal of `{module.__name__}` | arguments |", "|---|---|", *rows])


def documented(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Each signal of a module with the text below it."""
    body = ast.parse(inspect.getsource(module)).body
    for assignment, text in pairwise(body):
        match assignment, text:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="Signal"))),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, words


def events_page() -> str:
    from jobs.record import vocabulary
    from jobs.signals import SENT
    from workers.signals import SENT as SENT_OF_WORKERS

    sent = {
        id(signal): f"{module}.{name}"
        for module, names in (("jobs.signals", SENT), ("workers.signals", SENT_OF_WORKERS))
        for name, signal in vars(importlib.import_module(module)).items()
        if signal in names.values()
    }
    signals = SENT | SENT_OF_WORKERS
    rows = [
        f"| `{name}` | {cell(text)} | {signal_of(signals.get(name), sent)} |"
        for name, text in vocabulary.TYPES.items()
    ]
    return "\n".join(
        [
            "# Events\n",
            "The record of events is read with `GET /ojs/v1/events`, in the admin, and "
            "[live](../realtime.md). "
            + (inspect.getdoc(vocabulary) or "").partition("\n\n")[2].replace("\n", " "),
            "",
            "| event | what happened, and the members of `data` | signal |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def signal_of(signal: object, names: dict[int, str]) -> str:
    return f"`{names[id(signal)]}`" if signal is not None else ""


def metrics_page() -> str:
    from workers.chores.metrics import FAMILIES

    rows = [
        f"| `{name}{'_total' if family.kind == 'counter' else ''}` | {family.kind} "
        f"| {', '.join(f'`{label}`' for label in family.labels)} "
        f"| {cell(f'{family.help} {family.note}')} |"
        for name, family in FAMILIES.items()
    ]
    return "\n".join(
        [
            "# Metrics\n",
            "What `GET /ojs/v1/metrics` exposes to Prometheus. [How to scrape it, and what the "
            "numbers mean](../metrics.md).\n",
            "| metric | kind | labels | |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def python_page() -> str:
    """Every name of docs/api.md with its signature and docstring."""
    parts = [
        "# The Python API in full\n",
        "The names of [the list](../api.md), in its order, with what their docstrings say.\n",
    ]
    seen: set[str] = set()
    for heading, names in listed_names():
        fresh = [name for name in names if name not in seen]
        seen |= set(fresh)
        if fresh:
            parts += [f"## {heading}\n", *(entry(name) for name in fresh)]
    return "\n".join(parts)


def listed_names() -> Iterator[tuple[str, list[str]]]:
    text = (Path(__file__).parent / "api.md").read_text()
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        rows = re.findall(r"^\| (`(?:jobs|workers)\..*?) \|", section, re.M)
        names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
        yield section.partition("\n")[0], names


def entry(name: str) -> str:
    found = resolved(name)
    if inspect.ismodule(found):
        exported = [one for one in getattr(found, "__all__", ()) if callable(getattr(found, one))]
        members = {one: getattr(found, one) for one in exported}
        return "\n".join([f"### {name}\n", docstring(found), *listing(members)])
    if inspect.isclass(found):
        head = f"class {name}{signature(found)}"
        members = {} if is_model(found) else public_members(found)
        return "\n".join([f"### {name}\n", code(head), docstring(found), *listing(members)])
    if callable(found):
        head = f"{'async ' if inspect.iscoroutinefunction(found) else ''}{name}{signature(found)}"
        return "\n".join([f"### {name}\n", code(head), docstring(found)])
    return ""


def resolved(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def is_model(found: type) -> bool:
    return hasattr(found, "_meta")


def public_members(found: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(found).items()
        if not name.startswith("_")
        and (isinstance(member, property) or (callable(member) and member.__doc__))
    }


def listing(members: dict[str, Any]) -> Iterator[str]:
    for name, member in members.items():
        if isinstance(member, property):
            text = docstring(member).strip()
            yield f"* `{name}`{f': {text}' if text else ''}"
        else:
            head = f"{name}{signature(member)}"
            text = indented(docstring(member))
            yield f"* `{'async ' if inspect.iscoroutinefunction(member) else ''}{head}`\n\n{text}"
    yield ""


class Plain(str):
    """An annotation that is text, shown without quotes."""

    __repr__ = str.__str__


def signature(found: Any) -> str:
    try:
        given = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter.replace(annotation=plain(parameter.annotation))
        for parameter in given.parameters.values()
        if parameter.name != "self"
    ]
    return str(
        given.replace(parameters=parameters, return_annotation=plain(given.return_annotation))
    )


def plain(annotation: Any) -> Any:
    return Plain(annotation) if isinstance(annotation, str) else annotation


def code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def docstring(found: Any) -> str:
    """A docstring as Markdown: its sections of arguments and errors are lists."""
    text = inspect.getdoc(found) or ""
    if inspect.isclass(found) and not found.__doc__:
        text = ""
    lines: list[str] = []
    in_section = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Raises|Returns|Yields):", line):
            lines += ["", f"*{line.rstrip(':')}*", ""]
            in_section = True
        elif in_section and re.match(r"    \S", line):
            lines.append(re.sub(r"^    ([\w, ]+):", r"* `\1`:", line))
        elif in_section and line.startswith("    "):
            lines.append("  " + line.strip())
        else:
            in_section = False
            lines.append(line)
    return "\n".join(lines) + "\n"


def indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines()) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "settings": settings_page,
    "commands": commands_page,
    "http": http_page,
    "signals": signals_page,
    "events": events_page,
    "metrics": metrics_page,
    "python": python_page,
}
