"""Reads the JSON object in a request body, and reports any error in it to the client.

Strict, because a document must be returned as it was sent, by both databases and to every client.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from ..conf import ojs_settings
from ..errors import (
    BodyTooLarge,
    InvalidPayload,
    InvalidRequest,
    UnfinishedBody,
    UnsupportedCompression,
)
from ..spec.cloudevents import BATCHED, EVENTS, STRUCTURED, media_type
from ..spec.jsonable import DEEPEST, may_have_large_float
from ..spec.members import LARGEST
from .dialects import MEDIA_TYPE, PLAIN_JSON
from .origins import check_type
from .request import Meta, Readable

MEDIA_TYPES = frozenset({MEDIA_TYPE, PLAIN_JSON})
OF_CLOUDEVENTS = frozenset({STRUCTURED, BATCHED})
"""What an enqueue may be, too; other endpoints find that members are missing."""
CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")
COMPRESSIONS = ["gzip"]
DRAINED = 4
"""A body of up to this many times the limit is read to its end before it is refused."""
CHUNK = 2**16
ROOM = 254 - DEEPEST
"""Levels that orjson still writes around the deepest document; responses need a few of them."""
LONGEST = 324
"""Digits of the smallest number, after the point."""
Mend = Callable[[Any], None]
"""Makes the errors legible that a document reports, in place."""


def read_object(stream: Readable, meta: Meta, mend: Mend | None = None) -> dict[str, Any] | None:
    """Return the JSON object in the body, or None if that is empty (OJS HTTP §6.1).

    A batch of CloudEvents is an array; it is the member `events` of the object.

    Args:
        mend: of a request that reports failures, whose errors are read whatever they contain.

    InvalidPayload: it is not a JSON object that can be stored without loss.
    InvalidRequest: its media type is not supported, or is missing and there is no key.
    BodyTooLarge: it exceeds `MAX_BODY_SIZE`.
    UnsupportedCompression: it is compressed with something other than gzip.
    UnfinishedBody: it did not arrive completely.
    UnfinishedBody: it did not arrive.
    """
    try:
        body = read_body(stream, meta)
    except OSError as problem:
        raise UnfinishedBody(str(problem) or "The request body did not arrive.") from problem
    if not body.strip():
        return None
    content_type = media_type(meta)
    if not content_type:
        check_type(meta)
    elif content_type not in MEDIA_TYPES and content_type not in OF_CLOUDEVENTS:
        raise InvalidRequest(
            f"Content type {content_type!r} is not supported; send {MEDIA_TYPE}.",
            received=content_type,
            supported=sorted(MEDIA_TYPES),
        )
    document: Any = parse_json(body, mend)
    if content_type == BATCHED and type(document) is list:
        return {EVENTS: document}
    if type(document) is not dict:
        raise InvalidPayload("The request body must be a JSON object.")
    return document


def read_required(document: dict[str, Any] | None) -> dict[str, Any]:
    """
    Raises:
        InvalidPayload: the body is empty.
    """
    if document is None:
        raise InvalidPayload("The request body is empty; it must be a JSON object.")
    return document


def read_body(stream: Readable, meta: Meta) -> bytes:
    limit = ojs_settings.MAX_BODY_SIZE
    declared = meta.get("CONTENT_LENGTH") or ""
    size = int(declared) if CONTENT_LENGTH.fullmatch(declared) else 0
    body = b"" if size > limit else stream.read(limit + 1)
    if size > limit or len(body) > limit:
        if size <= DRAINED * limit:
            _drain(stream, size)
        raise BodyTooLarge(
            f"The request body may have at most {limit} bytes.",
            field="envelope",
            max_bytes=limit,
            actual_bytes=max(size, len(body)),
        )
    encoding = meta.get("HTTP_CONTENT_ENCODING")
    return _unpacked(body, encoding.strip().lower(), limit) if encoding else body


def _drain(stream: Readable, size: int) -> None:
    """Read and discard the rest of the announced body.

    Many clients read the response only after they have sent everything; a refusal before that
    looks to them like a broken connection.
    """
    while size > 0 and stream.read(CHUNK):
        size -= CHUNK


def _unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo the `Content-Encoding`. The limit applies to the result (OJS payload limits §6.2).

    Raises:
        UnsupportedCompression: the encoding is not supported.
        InvalidPayload: the body is not in that encoding.
        BodyTooLarge: the result exceeds `limit` bytes.
    """
    if encoding == "identity":
        return body
    if encoding != "gzip":
        raise UnsupportedCompression(
            f"Content encoding {encoding[:64]!r} is not supported.", supported=COMPRESSIONS
        )
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        found = unpacking.decompress(body, limit + 1)
    except zlib.error as problem:
        raise InvalidPayload(f"The request body is not gzip data: {problem}.") from None
    if len(found) > limit:
        raise BodyTooLarge(
            f"The request body may have at most {limit} bytes when unpacked.",
            field="envelope",
            max_bytes=limit,
        )
    if not unpacking.eof:
        raise InvalidPayload("The request body is an incomplete gzip file.")
    if unpacking.unused_data:
        raise InvalidPayload("There is data after the gzip member; send a single member.")
    return found


def parse_json(body: bytes, mend: Mend | None = None) -> Any:
    """Parse strict JSON; refuse what cannot be stored without loss (OJS JSON format §13).

    Args:
        mend: the errors that it makes legible are not refused.

    Raises:
        InvalidPayload: malformed, not UTF-8, lone surrogates, NUL characters, nested too deeply,
            numbers beyond ±(2^53 - 1), or very many tiny ones.
    """
    try:
        return _parse_strictly(body)
    except InvalidPayload as refusal:
        if mend is None:
            raise
        try:
            mended = _mended(body, mend)
        except (ValueError, TypeError, RecursionError):
            raise refusal from None
    return _parse_strictly(mended)


def _mended(body: bytes, mend: Mend) -> bytes:
    """Return the body with legible errors.

    Raises:
        ValueError: it is not JSON.
        TypeError: other texts are not Unicode, or it is nested too deeply.
        RecursionError: it is nested much too deeply.
    """
    # Unlike orjson, Python's parser reads lone surrogates. Bytes that are not UTF-8 become some.
    # Numbers are those of orjson, and NaN is none.
    document = json.loads(
        body.decode(errors="surrogateescape"),
        parse_int=orjson.loads,
        parse_float=orjson.loads,
        parse_constant=orjson.loads,
    )
    mend(document)
    return orjson.dumps(document)


def _parse_strictly(body: bytes) -> Any:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise InvalidPayload(f"The request body is not valid JSON: {problem.msg}.") from None
    require_storable(document, len(body))
    return document


def require_storable(document: Any, size: int) -> None:
    """
    Args:
        size: of its JSON.

    Raises:
        InvalidPayload: it cannot be stored without loss, see `parse_json()`.
    """
    # Writing it again is the fastest look at all of its values.
    around = document
    if size > 2 * DEEPEST:
        for _ in range(ROOM):
            around = [around]
    try:
        written = orjson.dumps(around, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:
        _check_depth(document)
        _check_values(document, "$")
        raise
    if may_have_large_float(written) or rb"\u0000" in written:
        _check_values(document, "$")
    tiny = written.count(b"e-")
    if tiny and tiny * LONGEST > ojs_settings.MAX_BODY_SIZE:
        _check_exponents(document, ojs_settings.MAX_BODY_SIZE)


def _levels(document: Any) -> Iterator[list[Any]]:
    """The values at each level of nesting, from the outside in."""
    level = [document]
    while level:
        yield level
        level = [
            item
            for value in level
            if type(value) in (dict, list)
            for item in (value.values() if type(value) is dict else value)
        ]


def _check_depth(document: Any) -> None:
    for number, level in enumerate(_levels(document)):
        if number >= DEEPEST and any(type(value) in (dict, list) for value in level):
            raise InvalidPayload(f"The JSON document is nested more than {DEEPEST} levels deep.")


def _check_values(value: Any, path: str) -> None:
    if type(value) is dict:
        for name, item in value.items():
            _check_text(name, path)
            _check_values(item, f"{path}.{name}")
    elif type(value) is list:
        for index, item in enumerate(value):
            _check_values(item, f"{path}[{index}]")
    elif type(value) is str:
        _check_text(value, path)
    elif type(value) in (int, float) and not -LARGEST <= value <= LARGEST:
        raise _refusal(path, f"The number at {path} is beyond ±(2^53 - 1); send it as a string.")


def _check_exponents(document: Any, limit: int) -> None:
    """Refuse numbers that PostgreSQL, which stores their digits, would blow up."""
    tiny = (
        value
        for level in _levels(document)
        for value in level
        if type(value) is float and 0 < abs(value) < 1
    )
    digits = -sum(math.log10(abs(value)) for value in tiny)
    if digits > limit:
        raise InvalidPayload(
            f"Without exponents, the numbers in the JSON document have more than {limit} digits.",
            hint="Send numbers such as 1e-300 as strings.",
        )


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise _refusal(path, f"The string at {path} contains a NUL character.")


def _refusal(path: str, message: str) -> InvalidPayload:
    """A refusal with the details that JSON format §12.4 requires."""
    error = {"path": path, "message": message}
    return InvalidPayload(
        message, field=path.removeprefix("$").lstrip("."), path=path, validation_errors=[error]
    )
