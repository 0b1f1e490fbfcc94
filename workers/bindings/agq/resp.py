"""RESP, as a server reads and writes it: arrays of bulk strings in, any reply out.

Requests are read here rather than by a client's parser, because a client's parser trusts its
server: fourteen bytes that announce a thousand million elements keep hiredis busy for seconds,
and memory is set aside for all of them. Nothing is reserved here before it has arrived.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

MOST_ARGUMENTS = 1024
LONGEST_LINE = 64 * 1024
"""Bytes of an inline command, and far more than any header has."""
END = b"\r\n"
HTTP = re.compile(rb"POST\s|Host:|[A-Za-z]+\s.*\sHTTP/[0-9]", re.IGNORECASE)
"""What begins like a line of an HTTP request: what browsers are made to send (as in Redis)."""


class ProtocolError(Exception):
    """What arrived is no command; the connection cannot be followed any further."""


class HTTPSpoken(Exception):
    """What arrived is an HTTP request."""


class Status(str):
    """A simple string: `+OK`."""


class Failed(Exception):
    """An error reply: `-ERR …`; the text begins with its code."""


class Members(list[str]):
    """A set where the client speaks RESP3, else an array."""


PER_ARGUMENT = 64
"""Bytes of memory that an argument takes beside its text."""


def size_of(command: list[bytes]) -> int:
    """Bytes that a command takes while it waits: many small ones are a lot, too."""
    return sum(map(len, command)) + PER_ARGUMENT * (len(command) + 1)


class Parser:
    """Cuts a stream of bytes into commands. Holds no more than one command and one read."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Most bytes of one command."""
        self._buffer = bytearray()
        self._at = 0
        self._arguments: list[bytes] = []
        self._missing = 0
        """Arguments of the present command that have not arrived."""
        self._length = -1
        """Bytes of the argument being read; -1 before its header."""
        self._size = 0

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their command."""
        return len(self._buffer) + sum(map(len, self._arguments))

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        """Yield the commands that `data` completes.

        Raises:
            ProtocolError: it is no RESP, or a command beyond the limits.
            HTTPSpoken: it is HTTP.
        """
        self._buffer += data
        while (command := self._next()) is not None:
            if command:
                yield command
        del self._buffer[: self._at]
        self._at = 0

    def _next(self) -> list[bytes] | None:
        """The next command; an empty one is nothing; None if it has not all arrived."""
        if not self._missing and not self._begin():
            return None
        if not self._missing:
            command, self._arguments = self._arguments, []
            return command
        while self._missing:
            if not self._argument():
                return None
        command, self._arguments, self._size = self._arguments, [], 0
        return command

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._at, self._at + LONGEST_LINE)
        if end < 0:
            if len(self._buffer) - self._at >= LONGEST_LINE:
                raise ProtocolError("too big inline request")
            return None
        line = bytes(self._buffer[self._at : end]).removesuffix(b"\r")
        self._at = end + 1
        return line

    def _begin(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if line[:1] != b"*":
            if HTTP.match(line):
                raise HTTPSpoken
            self._arguments = _words(line)
            return True
        self._missing = max(0, _number(line[1:], MOST_ARGUMENTS, "invalid multibulk length"))
        return True

    def _argument(self) -> bool:
        if self._length < 0:
            line = self._line()
            if line is None:
                return False
            if line[:1] != b"$":
                raise ProtocolError(f"expected '$', got {line[:1].decode('latin-1')!r}")
            self._length = _number(line[1:], self.limit, "invalid bulk length")
            if self._length < 0:
                raise ProtocolError("invalid bulk length")
            self._size += self._length
            if self._size > self.limit:
                raise ProtocolError(f"command larger than {self.limit} bytes")
        end = self._at + self._length
        if len(self._buffer) < end + 2:
            return False
        if self._buffer[end : end + 2] != END:
            raise ProtocolError("bulk string is longer than it says")
        self._arguments.append(bytes(self._buffer[self._at : end]))
        self._at, self._length, self._missing = end + 2, -1, self._missing - 1
        return True


def _number(text: bytes, most: int, problem: str) -> int:
    digits = text[1:] if text[:1] == b"-" else text
    # int() also takes spaces, underscores and other scripts' digits.
    if not digits.isdigit() or len(digits) > 12 or int(text) > most:
        raise ProtocolError(problem)
    return int(text)


def _words(line: bytes) -> list[bytes]:
    """An inline command, as somebody types it into telnet."""
    try:
        return [word.encode("latin-1") for word in shlex.split(line.decode("latin-1"))]
    except ValueError:
        raise ProtocolError("unbalanced quotes in request") from None


def encode(reply: Any, version: int = 2) -> bytes:
    """Return the bytes of a reply in RESP2 or RESP3."""
    return b"".join(_parts(reply, version))


def _parts(reply: Any, version: int) -> Iterable[bytes]:
    match reply:
        case None:
            yield b"_\r\n" if version == 3 else b"$-1\r\n"
        case Status():
            yield b"+%b\r\n" % _one_line(reply)
        case Failed():
            yield b"-%b\r\n" % _one_line(str(reply))
        case int():
            yield b":%d\r\n" % reply
        case str() | bytes():
            data = reply.encode() if isinstance(reply, str) else reply
            yield b"$%d\r\n%b\r\n" % (len(data), data)
        case dict():
            pairs = [item for pair in reply.items() for item in pair]
            yield b"%%%d\r\n" % len(reply) if version == 3 else b"*%d\r\n" % len(pairs)
            for item in pairs:
                yield from _parts(item, version)
        case _:
            sign = b"~" if version == 3 and isinstance(reply, Members) else b"*"
            yield b"%b%d\r\n" % (sign, len(reply))
            for item in reply:
                yield from _parts(item, version)


def _one_line(text: str) -> bytes:
    """What a client sent may be part of an error, and must not end the line."""
    return " ".join(text.split()).encode(errors="replace")


class Encoded(bytes):
    """Bytes that are a reply already; any others are a value, whatever they look like."""


NO_ITEMS = Encoded(b"*-1\r\n")
"""What BRPOP answers when its time is over, in RESP2: an array that is not there."""
