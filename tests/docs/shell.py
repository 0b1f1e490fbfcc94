"""Shell blocks of the documentation: their commands, and whether the programs accept them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator

from django.core.management import get_commands, load_command_class

from .pages import ROOT

OUTSIDE = {"git", "cd", "export", "redis-cli", "["}
"""Programs that are neither ours nor Python's, and need not be on every machine."""
EXTRAS = re.compile(r"'?django-ojs(?:\[(?P<names>[\w,]+)\])?'?")


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command, without assignments before it."""
    text = re.sub(r"(^|\s)#.*$", r"\1", block.replace("\\\n", " "), flags=re.M)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";()&|<>\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for token in [*lexer, "\n"]:
        if set(token) <= set(";()&|<>\n"):
            if words:
                yield words
            words = []
        elif words or not re.match(r"\w+=", token):
            words.append(token)


def accept(words: list[str]) -> None:
    """
    Raises:
        AssertionError, SystemExit: the program does not exist, or does not take these arguments.
    """
    program, *rest = words
    program = program.rpartition("/")[2]
    if program == "python" and rest[0] == "manage.py":
        program, *rest = rest
    if program == "manage.py":
        name, *options = rest
        command = load_command_class(get_commands()[name], name)
        command.create_parser("manage.py", name).parse_args(options)
    elif program == "make":
        makes(*rest)
    elif program == "pip":
        installs(*rest)
    elif program == "python":
        assert rest[0] == "-m", words
        assert importlib.util.find_spec(rest[1]) is not None, words
        for word in rest[2:]:
            assert not word.endswith(".py") or (ROOT / word).exists(), word
    else:
        assert program in OUTSIDE, f"What is {program}?"


def makes(target: str, *assignments: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.M), f"There is no `make {target}`."
    given = dict(word.split("=", 1) for word in assignments)
    if "ARGS" in given:
        words = shlex.split(given["ARGS"])
        if target == "bench":
            from tests.benchmarks.__main__ import arguments

            arguments(words)
        elif target == "campaign":
            from tests.campaign.options import arguments as of_campaign

            of_campaign(words)
        elif target == "run":
            accept(["manage.py", "quickstart", *words[:-1]])
        else:
            raise AssertionError(f"What does `make {target}` take?")


def installs(command: str, *packages: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert command == "install"
    for package in packages:
        found = EXTRAS.fullmatch(package)
        assert found is not None, package
        names = set((found["names"] or "").split(",")) - {""}
        assert names <= project["optional-dependencies"].keys(), package
