"""Table of commands, and the function that checks it.

A binding looks its commands up once, when its URLs or tables are set up, and calls `authorize` for
each request. What a row declares about objects (`OfProject`, `OfWorker`) is enforced where they
are found: `projects` narrows to a project, `admission` to a worker or a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ..conf import protocols
from ..errors import PermissionDenied
from ..models import Scope

if TYPE_CHECKING:
    from ..http.authentication import Caller


class Binding(StrEnum):
    """The part of `jobs` that a command belongs to. Worker protocols have names of their own."""

    OJS = "OJS HTTP"
    ADMIN = "Admin API"


class OfProject(StrEnum):
    """What the key of a project may use a command on."""

    OWN = "own"
    """Objects of the project. Nothing else exists for it."""
    SHARED = "shared"
    """Objects that all projects share: read only."""
    NOTHING = "nothing"
    """The command concerns all projects."""


class OfWorker(StrEnum):
    """What a key bound to a worker, or to the workers with a label, may use a command on."""

    ANYTHING = "anything"
    """Nothing: the binding names the workers it works for, and this is not work."""
    SELF = "self"
    """Its worker, or workers that carry its label."""
    HELD = "held"
    """Jobs that such a worker holds."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a command of a binding requires, and what it may be used on."""

    binding: str
    """A `Binding`, or the name of a worker protocol in the table."""
    name: str
    """`resource.action` of a viewset, or the name of the command."""
    scopes: tuple[Scope, ...]
    """Any of these allows it; empty where every key does."""
    of_project: OfProject
    of_worker: OfWorker = OfWorker.ANYTHING
    reads: bool = False
    """It changes nothing: `ojs:data:read` allows it, where `ojs:data:write` allows others."""
    is_open: bool = False
    """It needs no key."""
    hides: bool = False
    """It returns arguments, results or errors to keys that may not see them: these are redacted
    unless the key has `ojs:admin:args`."""
    note: str = ""
    """A remark for the reference."""
    opened_by: frozenset[str] = field(init=False, repr=False)
    """All scopes that allow it, including the wider ones; empty where every key does."""

    def __post_init__(self) -> None:
        opening = {
            str(held)
            for held in Scope
            for scope in self.scopes
            if scope.is_opened_by({held}, reads=self.reads)
        }
        object.__setattr__(self, "opened_by", frozenset(opening))


_table: dict[tuple[str, str], Command] = {}


def declare(*rows: Command) -> None:
    """Add commands to the table.

    Raises:
        ValueError: one of them has been declared before.
    """
    for row in rows:
        if (row.binding, row.name) in _table:
            raise ValueError(f"{row.binding} {row.name} is declared twice.")
        _table[row.binding, row.name] = row


@cache
def _declared_in(module: str) -> dict[str, Command]:
    """
    Raises:
        ValueError: a command is declared twice.
    """
    rows: Sequence[Command] = import_module(module).COMMANDS
    found = {row.name: row for row in rows}
    if len(found) < len(rows):
        raise ValueError(f"{module} declares a command twice.")
    return found


def _of_protocols(binding: str) -> Iterator[Command]:
    """Yield what the packages of worker protocols declare, importing only those of `binding`."""
    for protocol in protocols():
        if protocol.commands and protocol.named_in_table == binding:
            yield from _declared_in(protocol.commands).values()


def find(binding: str, name: str) -> Command | None:
    """Return the declaration of a command; None if there is none, and then no key may use it."""
    found = _table.get((binding, name))
    if found is not None:
        return found
    return next((row for row in _of_protocols(binding) if row.name == name), None)


def bindings() -> list[str]:
    """Return everything that commands are declared for: parts of `jobs`, then worker protocols."""
    names = [*Binding, *(protocol.named_in_table for protocol in protocols())]
    return list(dict.fromkeys(map(str, names)))


def commands(binding: str = "") -> list[Command]:
    """Return all commands, or those of one binding, in the order of declaration."""
    return [
        row
        for name in ([str(binding)] if binding else bindings())
        for row in [*(own for own in _table.values() if own.binding == name), *_of_protocols(name)]
    ]


def authorize(caller: Caller, command: Command | None) -> None:
    """Allow a caller to use a command, on whatever objects.

    Raises:
        PermissionDenied: the caller's key lacks the scope, or belongs to a project while the
            command concerns all projects, or the command is not declared.
    """
    if command is None:
        raise PermissionDenied("No key permits this: the command is not declared.")
    if command.is_open:
        return
    if command.opened_by and command.opened_by.isdisjoint(caller.scopes):
        wanted = " or ".join(f"'{scope}'" for scope in command.scopes)
        raise PermissionDenied(
            f"This API key may not do that: it needs the scope {wanted}.",
            scope=str(command.scopes[0]),
        )
    if caller.project and command.of_project is OfProject.NOTHING:
        raise PermissionDenied(
            "This API key belongs to a project, and this concerns all projects.",
            hint="Use a key without a project, and do not send X-OJS-Tenant.",
            project=caller.project,
        )


def sees_all(caller: Caller) -> bool:
    """Whether nothing of a job is hidden from this caller: it may see what is redacted for others,
    or reads jobs as the programs do that enqueue them."""
    return caller.may(Scope.ADMIN_ARGS) or caller.may(Scope.PRODUCE, reads=True)


def is_redacted(command: Command | None, caller: Caller) -> bool:
    """Whether arguments, results and errors in the answer are redacted for this caller."""
    return (command is None or command.hides) and not caller.may(Scope.ADMIN_ARGS)
