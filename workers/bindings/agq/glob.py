"""Key patterns with the syntax of Redis: `*`, `?`, `[abc]`, `[^a]`, `[a-z]` and `\\`.

A pattern becomes a regular expression that never backtracks into a `*`: the text between two stars
is matched at its first occurrence, which is as good as any later one. So the work is at most
proportional to key times pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

LONGEST = 1024
"""Maximum length of a pattern, in bytes."""
SPECIAL = re.compile(rb"[*?\[\\]")


def literal_beginning(pattern: bytes) -> bytes:
    """The literal prefix of every key that matches."""
    found = SPECIAL.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that checks whether a key matches.

    Raises:
        ValueError: the pattern is longer than any possible key.
    """
    if len(pattern) > LONGEST:
        raise ValueError(f"a pattern may have {LONGEST} bytes at most")
    first, *others = _between_stars(pattern)
    expression = first
    if others:
        *middle, last = others
        found_first = b"".join(b"(?>.*?%b)" % part for part in middle if part)
        expression += found_first + b".*" + last
    compiled = re.compile(expression, re.DOTALL)
    return lambda key: compiled.fullmatch(key) is not None


def _between_stars(pattern: bytes) -> list[bytes]:
    """The pattern, split at its stars, as regular expressions."""
    parts = [b""]
    for token in _tokens(pattern):
        if token is None:
            parts.append(b"")
        else:
            parts[-1] += token
    return parts


def _tokens(pattern: bytes) -> Iterator[bytes | None]:
    """Each token as a regular expression; None for a star."""
    at = 0
    while at < len(pattern):
        sign = pattern[at : at + 1]
        at += 1
        if sign == b"*":
            yield None
        elif sign == b"?":
            yield b"."
        elif sign == b"[":
            token, at = _class(pattern, at)
            yield token
        elif sign == b"\\" and at < len(pattern):
            yield re.escape(pattern[at : at + 1])
            at += 1
        else:
            yield re.escape(sign)


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """A character class as a regular expression, and its end; an unclosed one ends with the
    pattern."""
    inverted = pattern[at : at + 1] == b"^"
    at += inverted
    members: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            members.add(pattern[at + 1])
            at += 2
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            first, last = sorted((pattern[at], pattern[at + 2]))
            members.update(range(first, last + 1))
            at += 3
        else:
            members.add(pattern[at])
            at += 1
    if inverted:
        members = set(range(256)) - members
    if not members:
        return b"(?!)", at + 1
    return b"[%b]" % b"".join(b"\\x%02x" % member for member in sorted(members)), at + 1
