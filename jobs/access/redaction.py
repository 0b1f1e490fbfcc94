"""Redaction: hides values by the name of their key, at any depth."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import Any

from ..conf import ojs_settings

HIDDEN = "[hidden]"
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:\s*)?')


def is_sensitive(key: str) -> bool:
    """Whether the value of `key` is hidden (`OJS["REDACT_KEYS"]`)."""
    lowered = key.lower()
    return any(fnmatchcase(lowered, pattern.lower()) for pattern in ojs_settings.REDACT_KEYS)


def redact(value: Any) -> Any:
    """Return a copy of this JSON value without sensitive values."""
    if isinstance(value, dict):
        return {k: HIDDEN if is_sensitive(k) else redact(v) for k, v in value.items()}
    if isinstance(value, list):
        return [redact(element) for element in value]
    return value


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


# Possessive, and never within a word: each character is tried once, however long the text.
QUOTED_KEY = re.compile(r"""(?<![\w.\-])([\w.\-]++)["']?\s{0,3}(?:=>|[:=])\s{0,3}""")
QUOTED_VALUE = re.compile(
    r"""
    "(?:[^"\\]|\\.)*+"? | '(?:[^'\\]|\\.)*+'? | (?:(?:bearer|basic)\s+)?[^\s,;&)}\]]*+
    """,
    re.VERBOSE | re.IGNORECASE,
)


def redact_prose(text: str) -> str:
    """Return a text for people, such as an error's message, without the values of sensitive keys.

    Recognises `login(password='x')` and `?token=x&page=1`; a value without a key is not found.
    """
    kept, position = [], 0
    while match := QUOTED_KEY.search(text, position):
        kept.append(text[position : match.end()])
        position = match.end()
        value = QUOTED_VALUE.match(text, position)
        if value and value[0] and is_sensitive(match[1]):
            kept.append(HIDDEN)
            position = value.end()
    return "".join([*kept, text[position:]])


QUOTING = frozenset({"message", "backtrace"})


def redact_quotes(value: Any) -> Any:
    """Like `redact`, for documents that quote: envelopes with errors, events, whole workflows.

    Sensitive values are also removed from the messages and backtraces of errors.
    """
    if isinstance(value, dict):
        return {
            k: HIDDEN if is_sensitive(k) else _quoted(v) if k in QUOTING else redact_quotes(v)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [redact_quotes(element) for element in value]
    return value


def redact_job(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return a job's envelope without sensitive values, marked as incomplete."""
    return {**redact_quotes(envelope), "redacted": True}


def _quoted(value: Any) -> Any:
    if isinstance(value, str):
        return redact_prose(value)
    return [_quoted(line) for line in value] if isinstance(value, list) else redact_quotes(value)


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def may_see(user: Any) -> bool:
    """Whether nothing is hidden from this user of the admin."""
    return bool(user.has_perm("ojs_jobs.view_job_args"))
