"""Commands about the connection itself, which Redis clients send first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jobs import __version__

from .resp import Failed, Status
from .session import WORKER_ID, WORKER_ID_LENGTH, Session

OK = Status("OK")


def ping(session: Session, arguments: list[bytes]) -> Any:
    if len(arguments) > 1:
        raise Failed("ERR wrong number of arguments for 'ping' command")
    return arguments[0] if arguments else Status("PONG")


def echo(session: Session, arguments: list[bytes]) -> Any:
    if len(arguments) != 1:
        raise Failed("ERR wrong number of arguments for 'echo' command")
    return arguments[0]


def select(session: Session, arguments: list[bytes]) -> Any:
    if arguments != [b"0"]:
        raise Failed("ERR DB index is out of range")
    return OK


def client(session: Session, arguments: list[bytes]) -> Any:
    """CLIENT SETNAME names the worker for which an unbound connection acts."""
    match [argument.upper() for argument in arguments[:1]]:
        case [b"SETNAME"] if len(arguments) == 2:
            name_it(session, arguments[1])
            return OK
        case [b"SETINFO"]:
            return OK
        case [b"GETNAME"]:
            return session.name
        case [b"ID"]:
            return session.number
    raise Failed("ERR unknown subcommand of CLIENT")


def name_it(session: Session, name: bytes) -> None:
    text = name.decode(errors="replace")
    if len(text) > 255 or any(sign.isspace() for sign in text):
        raise Failed("ERR Client names cannot contain spaces, newlines or special characters.")
    session.name = text
    # Clients that reconnect automatically repeat only their name.
    if not session.worker_id and WORKER_ID.fullmatch(text) and len(text) <= WORKER_ID_LENGTH:
        session.worker_id = text


def nothing(session: Session, arguments: list[bytes]) -> Any:
    return []


def info(session: Session, arguments: list[bytes]) -> Any:
    return f"# Server\r\nserver_name:django-ojs\r\nserver_version:{__version__}\r\n"


WORDS: dict[str, Callable[[Session, list[bytes]], Any]] = {
    "PING": ping,
    "ECHO": echo,
    "SELECT": select,
    "CLIENT": client,
    "COMMAND": nothing,
    "INFO": info,
}


def hello(arguments: list[bytes]) -> tuple[int | None, list[bytes] | None, bytes | None]:
    """Return protocol version, (user, key) and name, each None if absent."""
    version, login, name = None, None, None
    rest = list(arguments)
    if rest:
        if rest[0] not in (b"2", b"3"):
            raise Failed("NOPROTO unsupported protocol version")
        version = int(rest.pop(0))
    while rest:
        word = rest.pop(0).upper()
        if word == b"AUTH" and len(rest) >= 2:
            login, rest = rest[:2], rest[2:]
        elif word == b"SETNAME" and rest:
            name = rest.pop(0)
        else:
            raise Failed("ERR Syntax error in HELLO")
    return version, login, name


def greeting(session: Session) -> dict[str, Any]:
    return {
        "server": "django-ojs",
        "version": __version__,
        "proto": session.resp,
        "id": session.number,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }


def seconds(text: bytes) -> float:
    """
    Raises:
        Failed: it is not a number of seconds.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or len(text) > 32:
        raise Failed("ERR timeout is not a float or out of range")
    if value < 0:
        raise Failed("ERR timeout is negative")
    return value
