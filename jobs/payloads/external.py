"""Large arguments in a storage of the site, by reference (OJS payload limits §5).

Only references below `OJS["PAYLOAD_URI"]` are followed: anyone who may enqueue a job chooses its
arguments, and must not be able to make a worker read other files or addresses.
"""

from __future__ import annotations

import hashlib
import re
from secrets import token_hex
from typing import Any

import orjson
from django.core.files.base import ContentFile
from django.core.files.storage import storages

from ..conf import ojs_settings
from ..spec.encoded import ENCODED, REFERENCE, is_encoded
from ..spec.identifiers import uuid7
from .codecs import CodecError

NAME = re.compile(r"[0-9a-f-]{36}-[0-9a-f]{32}\.json")


class PayloadChecksumMismatch(Exception):
    """A value that is stored elsewhere is not what was put there (§5.4)."""

    type_on_wire = "PayloadChecksumMismatch"


def put(args: list[Any]) -> list[Any]:
    """Store the large ones among arguments; return the arguments with references to them."""
    if not ojs_settings.PAYLOAD_STORAGE:
        return args
    return [_put(each) for each in args]


def _put(value: Any) -> Any:
    data = orjson.dumps(value)
    if len(data) < ojs_settings.PAYLOAD_EXTERNAL_FROM:
        return value
    digest = hashlib.sha256(data)
    storage = storages[ojs_settings.PAYLOAD_STORAGE]
    # The name cannot be guessed: only someone who sees the reference can use it.
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


def get(value: Any) -> Any:
    """Return what a reference of this site refers to, or any other value as it is.

    Raises:
        CodecError: the storage does not have it.
        PayloadChecksumMismatch: it was changed.
    """
    name = _name(value)
    if name is None:
        return value
    try:
        with storages[ojs_settings.PAYLOAD_STORAGE].open(name) as file:
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
