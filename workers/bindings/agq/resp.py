"""RESP from the server's side: reads arrays of bulk strings, writes any reply.

A client's parser would not do, because it trusts its server: fourteen bytes that announce a
thousand million elements keep hiredis busy for seconds and make it allocate memory for all of
them. This parser allocates nothing before the data has arrived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

MOST_ARGUMENTS = 1024
LONGEST_LINE = 64 * 1024
"""Maximum length of an inline command, in bytes; far more than any header has."""
END = b"\r\n"
HTTP = re.compile(rb"POST\s|Host:|[A-Za-z]+\s.*\sHTTP/[0-9]", re.IGNORECASE)
"""Beginnings of HTTP request lines, which browsers can be made to send (as in Redis)."""

WORD = re.compile(
    rb"""
    ([^\s"']*)
    (?: "( (?: [^"\\] | \\. )* )"  |  '( (?: [^'\\] | \\' | \\(?!') )* )' )?
    (?: \s+ | \Z )
    """,
    re.VERBOSE | re.DOTALL,
)
"""A word of an inline command; a closing quote ends it."""
ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


class ProtocolError(Exception):
    """The input is not a command; the rest of the stream cannot be parsed."""


class HTTPSpoken(Exception):
    """The input is an HTTP request."""


class Status(str):
    """A simple string: `+OK`."""


class Failed(Exception):
    """An error reply: `-ERR …`; the text begins with its code."""


class Members(list[str]):
    """A set for clients that use RESP3, otherwise an array."""


PER_ARGUMENT = 64
"""Bytes of memory that an argument takes besides its text."""


def size_of(command: list[bytes]) -> int:
    """Bytes of memory that a waiting command takes: many small arguments are a lot, too."""
    return sum(map(len, command)) + PER_ARGUMENT * (len(command) + 1)


class Parser:
    """Splits a stream of bytes into commands. Holds at most one command and one read."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Maximum size of a command, in bytes."""
        self._buffer = bytearray()
        self._at = 0
        self._arguments: list[bytes] = []
        self._missing = 0
        """Arguments of the current command that have not arrived."""
        self._length = -1
        """Bytes of the argument being read; -1 before its header."""
        self._size = 0

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their command."""
        return len(self._buffer) + sum(map(len, self._arguments))

    def clear(self) -> None:
        """Drop what waits for its rest: no more will come."""
        self._buffer.clear()
        self._arguments.clear()

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        """Yield the commands that `data` completes.

        Raises:
            ProtocolError: it is not RESP, or a command exceeds the limits.
            HTTPSpoken: it is HTTP.
        """
        self._buffer += data
        while (command := self._next()) is not None:
            if command:
                yield command
        del self._buffer[: self._at]
        self._at = 0

    def _next(self) -> list[bytes] | None:
        """The next command, empty for an empty line; None if it has not arrived completely."""
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
    # int() also accepts spaces, underscores and other scripts' digits.
    if not digits.isdigit() or len(digits) > 12 or int(text) > most:
        raise ProtocolError(problem)
    return int(text)


def _words(line: bytes) -> list[bytes]:
    """An inline command, as typed into telnet: quotes and escapes mean what they do in Redis."""
    words, at, line = [], 0, line.strip()
    while at < len(line):
        word = WORD.match(line, at)
        if word is None:
            raise ProtocolError("unbalanced quotes in request")
        plain, double, single = word.groups(default=b"")
        words.append(plain + ESCAPE.sub(_unescaped, double) + single.replace(rb"\'", b"'"))
        at = word.end()
    return words


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code, character = escape.groups()
    return bytes.fromhex(code.decode()) if code else CONTROLS.get(character, character)


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
    """Replace line breaks: an error may contain a client's text, which must not end the line."""
    return " ".join(text.split()).encode(errors="replace")


class Encoded(bytes):
    """Bytes that are an encoded reply; plain bytes are always a value."""


NO_ITEMS = Encoded(b"*-1\r\n")
"""Reply of BRPOP when the time is up, in RESP2: a null array."""
