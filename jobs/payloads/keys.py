"""Keys of the site: a function of its own returns them (OJS encryption §10).

    def keys() -> dict[str, bytes]:
        return {"key-2026-02": new, "key-2025-08": old}

The first one encrypts; all of them decrypt. The function is called for each payload, so what asks
a service keeps the answer for a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..conf import ojs_settings
from ..spec.strict_base64 import from_base64

SIZE = 32
VARIABLE = "CODEC_KEYS"


def of_environment() -> dict[str, bytes]:
    """Read `CODEC_KEYS`, or the file that `CODEC_KEYS_FILE` names: `id=base64` for each key,
    separated by commas, the current one first.

    Raises:
        ImproperlyConfigured: it is something else, or the file cannot be read.
    """
    file = os.environ.get(f"{VARIABLE}_FILE")
    try:
        text = Path(file).read_text() if file else os.environ.get(VARIABLE, "")
    except OSError as problem:
        raise ImproperlyConfigured(f"{VARIABLE}_FILE: {problem}") from None
    except UnicodeDecodeError:
        raise ImproperlyConfigured(f"{VARIABLE}_FILE: it is no text.") from None
    found = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, key = entry.partition("=")
        try:
            found[name] = from_base64(key)
        except ValueError:
            # It is not quoted: it may be most of a key.
            raise ImproperlyConfigured(f"{VARIABLE}: key {name!r} is not base64.") from None
    return found


def function() -> Callable[[], Mapping[str, bytes]]:
    """Return the function that `OJS["CODEC_KEYS"]` names.

    Raises:
        ImproperlyConfigured: it cannot be imported, or is no function.
    """
    path = ojs_settings.CODEC_KEYS
    try:
        found: Any = import_string(path)
    except ImportError as problem:
        raise ImproperlyConfigured(f'OJS["CODEC_KEYS"]: {problem}') from problem
    if not callable(found):
        raise ImproperlyConfigured(f'OJS["CODEC_KEYS"]: {path} is no function.')
    return cast(Callable[[], Mapping[str, bytes]], found)


def check() -> None:
    """Check what can be checked without asking a service, as a function of the site may.

    A process may have no keys: those of others need not be its own.

    Raises:
        ImproperlyConfigured: the keys cannot be used.
    """
    if function() is of_environment:
        known()


def known() -> Mapping[str, bytes]:
    """Return the site's keys, the current one first.

    Raises:
        ImproperlyConfigured: the function cannot be imported, or a key is not 32 bytes.
    """
    found = function()()
    for name, key in found.items():
        if not name or not isinstance(key, bytes) or len(key) != SIZE:
            raise ImproperlyConfigured(f'OJS["CODEC_KEYS"]: key {name!r} is not {SIZE} bytes.')
    return found


def current() -> tuple[str, bytes]:
    """Return the key that encrypts, and its id.

    Raises:
        ImproperlyConfigured: there is none.
    """
    return next(iter(_any().items()))


def find(name: str) -> bytes | None:
    """
    Raises:
        ImproperlyConfigured: there is no key at all.
    """
    return _any().get(name)


def _any() -> Mapping[str, bytes]:
    found = known()
    if not found:
        path = ojs_settings.CODEC_KEYS
        raise ImproperlyConfigured(f'OJS["CODEC_KEYS"]: {path} returned no key.')
    return found
