"""Redaction: hides values by the name of their key, at any depth.

Whatever a client or a worker sends may end up here, so the time for a text grows with its length
and no faster: no expression goes over a character twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from fnmatch import translate
from functools import lru_cache
from typing import Any

from ..conf import ojs_settings

HIDDEN = "[hidden]"
LONGEST = 65_536
"""Characters that are shown of a text that may quote hidden values."""
FREE_TEXTS = frozenset({"message", "progress_message", "backtrace", "details", "reason"})
"""Members with texts that a worker or a client wrote, at any depth."""

# Possessive: a string that does not end is taken to the end of the text, and not tried again.
STRING = re.compile(r'"((?:[^"\\]|\\.)*+)(?:"(\s*+:\s*+)?|\\?+\Z)', re.DOTALL)


Search = Callable[[str], Any]


def is_hidden(path: Iterable[str]) -> bool:
    """Whether the value at a path of keys is hidden. Who may not see it may not search for it."""
    return any(map(is_sensitive, path))


def is_sensitive(key: str) -> bool:
    """Whether the value of `key` is hidden (`OJS["REDACT_KEYS"]`)."""
    return _sensitive()(key.lower()) is not None


def _sensitive() -> Search:
    """Return what finds the names of sensitive keys, in small letters."""
    return _search(tuple(ojs_settings.REDACT_KEYS))


@lru_cache(maxsize=16)
def _search(patterns: tuple[str, ...]) -> Search:
    either = "|".join(_expression(pattern.lower()) for pattern in patterns)
    return re.compile(either if patterns else "(?!)").search


def _expression(pattern: str) -> str:
    """Return what a pattern of `fnmatch` means, in a form that is searched for once."""
    inside = pattern.strip("*")
    if set("*?[") & set(inside):
        return rf"\A{translate(pattern)}"
    begin = "" if pattern.startswith("*") else r"\A"
    end = "" if pattern.endswith("*") else r"\Z"
    return begin + re.escape(inside) + end


def redact(value: Any) -> Any:
    """Return a copy of this JSON value without sensitive values."""
    return _redacted(value, _sensitive())


def redact_quotes(value: Any) -> Any:
    """Like `redact`, for documents that quote: envelopes with errors, events, whole workflows.

    Sensitive values are also removed from what workers and clients wrote in words.
    """
    return _redacted(value, _sensitive(), FREE_TEXTS)


def redact_job(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return a job's envelope without sensitive values, marked as incomplete."""
    return {**redact_quotes(envelope), "redacted": True}


def _redacted(
    value: Any, hides: Search, free: Collection[str] = (), *, is_free: bool = False
) -> Any:
    """
    Args:
        free: members of an object whose texts are for people, at any depth.
        is_free: it is within one of them.
    """
    if isinstance(value, dict):
        return {
            k: HIDDEN
            if hides(k.lower())
            else _redacted(v, hides, free, is_free=is_free or k in free)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_redacted(element, hides, free, is_free=is_free) for element in value]
    return redact_prose(value) if is_free and isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Like `redact`, for JSON as text, which may have been cut off anywhere."""
    kept, position = [], 0
    while match := STRING.search(text, position):
        kept.append(text[position : match.end()])
        position = match.end()
        if not match[2] or not is_sensitive(_unescaped(match[1])):
            continue
        kept.append(f'"{HIDDEN}"')
        try:
            _, position = json.JSONDecoder().raw_decode(text, position)
        except ValueError:
            return "".join(kept)  # cut off inside the value: the rest of the text is part of it
    return "".join([*kept, text[position:]])


# Never within a word: each character is tried once.
KEY = re.compile(
    r"""
    (?<![\w.\-]) ([\w.\-]++)
    (?: [\\"'\]] | %22 | %5d ){0,8}+  # behind it in "password", \"password\" and user[password]
    \s*+ (?: !?[:=]{1,3}+ >?+ | %3[ad] ) \s*+
    """,
    re.VERBOSE | re.IGNORECASE,
)
SCHEME = re.compile(r"(?:bearer|basic|digest|token)[ \t]++", re.IGNORECASE)
ANY_SCHEME = re.compile(r"[a-z][\w\-]*+[ \t]++", re.IGNORECASE)
PARAMETER = re.compile(
    r'[\s,]*+[\w\-]++\s*+=(?!=)\s*+(?:"(?:[^"\\]|\\.)*+"?+|[^\s,"]*+)', re.DOTALL
)
OPENING_QUOTE = re.compile(r"""[bfru]{0,2}+(\\*+)(["'])""", re.IGNORECASE)
QUOTE = re.compile(r"""(?<!\\)(\\*+)(["'])""")
QUOTE_OR_BRACKET = re.compile(rf"{QUOTE.pattern}|[()\[\]{{}}]")
PLAIN = re.compile(r"[^\s,;&()\[\]{}]++")


def redact_prose(text: str) -> str:
    """Return a text for people, such as an error's message, without the values of sensitive keys.

    Recognises `login(password='x')`, `?token=x&page=1`, `Authorization: Digest a="x", b="y"`, and
    JSON within JSON; a value without a key is not found. A value in quotes or brackets that are
    never closed goes on to the end. Of a text longer than `LONGEST`, the rest is cut off.
    """
    more = len(text) - LONGEST
    if more > 0:
        text = text[:LONGEST]
    kept, position = [], 0
    while match := KEY.search(text, position):
        kept.append(text[position : match.end()])
        position = match.end()
        if is_sensitive(match[1]):
            end = _end_of_value(text, position, match[1])
            if end > position:
                kept.append(HIDDEN)
                position = end
    kept.append(text[position:])
    if more > 0:
        kept.append(f"… [cut: {more} more characters]")
    return "".join(kept)


def _end_of_value(text: str, begin: int, key: str) -> int:
    """Return where the value that begins there ends."""
    if (quote := OPENING_QUOTE.match(text, begin)) is not None:
        return _end_of_quoted(text, quote)
    has_scheme = ANY_SCHEME if key.lower().endswith("authorization") else SCHEME
    if (scheme := has_scheme.match(text, begin)) is not None:
        begin = scheme.end()
        while (parameter := PARAMETER.match(text, begin)) is not None:
            begin = parameter.end()
    end = begin
    while end < len(text):
        if text[end] in "([{":
            end = _end_of_brackets(text, end)
        elif (plain := PLAIN.match(text, end)) is not None:
            end = plain.end()
        else:
            break
    return end


def _end_of_quoted(text: str, quote: re.Match[str]) -> int:
    """Return where a text in quotes ends, with what is written right behind it: `'it''s'`."""
    opening = quote[1] + quote[2]
    end = _behind_quote(text, quote.end(), opening)
    while text.startswith(opening, end):
        end = _behind_quote(text, end + len(opening), opening)
    return end


def _behind_quote(text: str, begin: int, opening: str) -> int:
    r"""Return where a text in such quotes ends: `"`, in JSON within JSON `\"`, then `\\\"`."""
    for quote in QUOTE.finditer(text, begin):
        if quote[2] == opening[-1] and len(quote[1]) % (2 * len(opening)) == len(opening) - 1:
            return quote.end()
    return len(text)


def _end_of_brackets(text: str, begin: int) -> int:
    depth, position = 0, begin
    while (found := QUOTE_OR_BRACKET.search(text, position)) is not None:
        position = found.end()
        if found[2]:
            position = _behind_quote(text, position, found[0])
        else:
            depth += 1 if found[0] in "([{" else -1
            if not depth:
                return position
    return len(text)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def may_see(user: Any) -> bool:
    """Whether nothing is hidden from this user of the admin."""
    return bool(user.has_perm("ojs_jobs.view_job_args"))
