"""Writes the reference pages of the site from the code; `make docs` runs it at each build."""

from __future__ import annotations

import argparse
import ast
import inspect
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
            INSTALLED_APPS=["rest_framework", "jobs", "workers"],
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
        rows = [f"| `{name}` | {cell(text)} |" for name, text in documented(module)]
        lines = [f"## {module.__name__}\n", inspect.getdoc(module) or "", ""]
        parts.append("\n".join([*lines, "| signal | arguments |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


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


PAGES: dict[str, Callable[[], str]] = {
    "settings": settings_page,
    "commands": commands_page,
    "http": http_page,
    "signals": signals_page,
}
