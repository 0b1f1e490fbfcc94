"""Large arguments in a storage of the site, by reference (OJS payload limits §5).

Only references below `OJS["PAYLOAD_URI"]` are followed: anyone who may enqueue a job chooses its
arguments, and must not be able to make a worker read other files or addresses.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from secrets import token_hex
from typing import Any

import orjson
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.utils.translation import gettext_noop

from ..conf import ojs_settings
from ..errors import StorageUnavailable
from ..spec.encoded import ENCODED, REFERENCE, is_encoded
from ..spec.identifiers import uuid7
from .codecs import CodecError

logger = logging.getLogger("jobs.payloads")

NAME = re.compile(r"[0-9a-f-]{36}-[0-9a-f]{32}\.json")
RELEASED = "released"
"""Folder with the lists of what may be deleted."""
LIST = re.compile(r"[0-9a-f-]{36}\.json")
# Clients get English, users their own language (`gettext`).
AWAY = gettext_noop("The storage of large arguments cannot be used at present.")


class PayloadChecksumMismatch(Exception):
    """A value that is stored elsewhere is not what was put there (§5.4)."""

    type_on_wire = "PayloadChecksumMismatch"


def put(args: list[Any]) -> list[Any]:
    """Store the large ones among arguments; return the arguments with references to them.

    Raises:
        StorageUnavailable: try again.
    """
    if not ojs_settings.PAYLOAD_STORAGE:
        return args
    return [_put(each) for each in args]


def _put(value: Any) -> Any:
    data = orjson.dumps(value)
    if len(data) < ojs_settings.PAYLOAD_EXTERNAL_FROM:
        return value
    digest = hashlib.sha256(data)
    # The name cannot be guessed: only someone who sees the reference can use it.
    with _reached() as storage:
        name = storage.save(f"{uuid7()}-{token_hex(16)}.json", ContentFile(data))
    reference = {
        REFERENCE: f"{_base()}{name}",
        "size": len(data),
        "checksum": f"sha256:{digest.hexdigest()}",
    }
    return reference | ({ENCODED: True} if is_encoded(value) else {})


def _base() -> str:
    return f"{ojs_settings.PAYLOAD_URI.rstrip('/')}/"


def is_reference(value: Any) -> bool:
    """Whether this refers to the storage of this site."""
    return _name(value) is not None


def _name(value: Any) -> str | None:
    if not ojs_settings.PAYLOAD_STORAGE or type(value) is not dict:
        return None
    uri = value.get(REFERENCE)
    if not isinstance(uri, str) or not uri.startswith(_base()):
        return None
    name = uri.removeprefix(_base())
    return name if NAME.fullmatch(name) else None


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of all files of the storage that a value refers to, however deep inside."""
    name = _name(value)
    if name is not None:
        yield name
    elif isinstance(value, dict):
        for inner in value.values():
            yield from names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner)


def release(names: Collection[str]) -> None:
    """Put a list of files that are not needed any more into the storage.

    Raises:
        StorageUnavailable: try again.
    """
    if names:
        content = ContentFile(orjson.dumps(sorted(names)))
        with _reached() as storage:
            storage.save(f"{RELEASED}/{uuid7()}.json", content)


def released(*, before: datetime) -> list[str]:
    """Return the lists that are older, the oldest first."""
    try:
        files = _storage().listdir(RELEASED)[1]
    except FileNotFoundError:
        return []
    last = f"{int(before.timestamp() * 1000):012x}"
    old = sorted(file for file in files if LIST.fullmatch(file) and _time_of(file) < last)
    return [f"{RELEASED}/{file}" for file in old]


def _time_of(file: str) -> str:
    """Return the time of a file that is named by a UUIDv7: milliseconds in hexadecimal digits."""
    return file[:8] + file[9:13]


def read_list(path: str) -> set[str]:
    """Return the files that a list names; none if another process has read it, or it is no list."""
    try:
        with _storage().open(path) as file:
            listed = orjson.loads(file.read())
    except FileNotFoundError:
        return set()
    except orjson.JSONDecodeError:
        listed = None
    if not isinstance(listed, list):
        logger.error("%s in the storage of large arguments is no list: it is skipped.", path)
        return set()
    return {name for name in listed if isinstance(name, str) and NAME.fullmatch(name)}


def delete(name: str) -> None:
    """Delete a file; one that does not exist any more is no error."""
    _storage().delete(name)


def _storage() -> Storage:
    return storages[ojs_settings.PAYLOAD_STORAGE]


@contextmanager
def _reached() -> Iterator[Storage]:
    """Yield the storage.

    Raises:
        FileNotFoundError: it does not have the file.
        StorageUnavailable: something else is the matter with it.
    """
    storage = _storage()
    try:
        yield storage
    except FileNotFoundError:
        raise
    except Exception as problem:
        # The storages of clouds have errors of their own, without a common class.
        logger.error("%s %s: %s", AWAY, type(problem).__name__, problem)
        raise StorageUnavailable(AWAY) from problem


def get(value: Any) -> Any:
    """Return what a reference of this site refers to, or any other value as it is.

    Raises:
        CodecError: the storage does not have it.
        PayloadChecksumMismatch: it was changed.
        StorageUnavailable: try again.
    """
    name = _name(value)
    if name is None:
        return value
    try:
        with _reached() as storage, storage.open(name) as file:
            data = file.read()
    except FileNotFoundError:
        raise CodecError(f"The stored payload {name} does not exist any more.") from None
    if not matches(data, value.get("checksum")):
        raise PayloadChecksumMismatch(f"The stored payload {name} was changed.")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise CodecError(f"The stored payload {name} is not JSON.") from None


def matches(data: bytes, checksum: Any) -> bool:
    """Whether data has this checksum, such as `sha256:…`; one that is missing fits any."""
    if checksum is None:
        return True
    algorithm, _, digest = str(checksum).partition(":")
    if algorithm not in ("sha256", "sha384", "sha512"):
        return False
    return hashlib.new(algorithm, data).hexdigest() == digest
