"""Chain of codecs of this site: JSON values to encoded ones, and back (OJS encryption §5, §8)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import orjson
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ..conf import ojs_settings
from ..spec.encoded import (
    ENCODED,
    ENCODINGS,
    KEY_ID,
    are_encoded,
    is_encoded,
    joined,
    separated,
)
from . import codecs, external
from .codecs import Codec, CodecError, Encryption, Gzip, Payload

KNOWN: tuple[type[Codec], ...] = (Gzip, Encryption)
"""Decoded even if the chain does not have them any more."""


@cache
def chain() -> tuple[Codec, ...]:
    """Return the codecs of `OJS["CODECS"]`, in the order of encoding.

    Raises:
        ImproperlyConfigured: one of them cannot be made, or has no `encoding`.
    """
    made = []
    for path in ojs_settings.CODECS:
        try:
            codec = import_string(path)()
        except ImportError as problem:
            raise ImproperlyConfigured(f'OJS["CODECS"]: {problem}') from problem
        if not isinstance(getattr(codec, "encoding", None), str):
            raise ImproperlyConfigured(f'OJS["CODECS"]: {path} has no encoding.')
        made.append(codec)
    return tuple(made)


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "OJS":
        chain.cache_clear()


setting_changed.connect(_reset, dispatch_uid="ojs_codecs")


def encode(data: bytes) -> tuple[Payload, list[str]]:
    """Pass bytes through the chain; return the names of the codecs that changed them, in order."""
    payload, applied = Payload(data), []
    for codec in chain():
        encoded = codec.encode(payload)
        if encoded is not payload:
            payload = encoded
            applied.append(codec.encoding)
    return payload, applied


def decode(payload: Payload, encodings: Sequence[str]) -> bytes:
    """Undo encodings, the last one first.

    Raises:
        CodecError: there is no such codec here, or no such key, or the payload was changed.
    """
    for name in reversed(encodings):
        payload = _codec(name).decode(payload)
    return payload.data


def _codec(name: str) -> Codec:
    for codec in chain():
        if codec.encoding == name:
            return codec
    for kind in KNOWN:
        if kind.encoding == name:
            return kind()
    raise CodecError(f"There is no codec {name[:64]!r} here.")


# Values


def sealed(value: Any) -> Any:
    """Return a JSON value in its encoded form, which says by itself how to decode it."""
    payload, applied = encode(orjson.dumps(value))
    if not applied:
        return value
    return _element(payload, applied) | {"key_id": payload.metadata.get(codecs.KEY_ID, "")}


def _element(payload: Payload, applied: Sequence[str]) -> dict[str, Any]:
    data = base64.b64encode(payload.data).decode()
    return {ENCODED: True, "encoding": joined(applied), "data": data}


def opened(value: Any, meta: Mapping[str, Any] | None = None) -> Any:
    """Return the value inside an encoded one, or any other value as it is.

    Args:
        meta: of the job whose arguments these are.

    Raises:
        CodecError: it cannot be decoded.
    """
    if not is_encoded(value):
        return value
    encoding, text = value.get("encoding"), value.get("data")
    named = meta.get(ENCODINGS) if meta else None
    if not isinstance(text, str) or not isinstance(encoding, str):
        raise CodecError("An encoded payload has the members 'encoding' and 'data'.")
    listed = isinstance(named, list) and all(isinstance(name, str) for name in named)
    encodings = named if listed and named else separated(encoding)
    key_id = value.get("key_id") or (meta or {}).get(KEY_ID) or ""
    return parsed(text, encodings, str(key_id))


def open_all(values: Sequence[Any]) -> list[Any]:
    """`opened()` for results of several jobs; those of a nested workflow are a list."""
    return [open_all(each) if type(each) is list else opened(each) for each in values]


def parsed(text: str, encodings: Sequence[str], key_id: str) -> Any:
    """Decode base64 text to the JSON value inside.

    Raises:
        CodecError: it cannot be decoded, or is not JSON inside.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise CodecError("The data of an encoded payload is not base64.") from None
    try:
        return orjson.loads(decode(Payload(data, {codecs.KEY_ID: key_id}), encodings))
    except orjson.JSONDecodeError:
        raise CodecError("The payload is not JSON.") from None


# Arguments


def seal_args(args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return encoded arguments, and the members of `meta` that say how (§5.2, §5.3)."""
    payload, applied = encode(orjson.dumps(args))
    if not applied:
        return external.put(args), {}
    meta: dict[str, Any] = {ENCODINGS: applied}
    key_id = payload.metadata.get(codecs.KEY_ID)
    if key_id:
        meta[KEY_ID] = key_id
    return external.put([_element(payload, applied)]), meta


def open_args(args: Any, meta: Mapping[str, Any]) -> Any:
    """Return arguments in clear, those that are stored elsewhere included.

    Raises:
        CodecError: they cannot be decoded.
        PayloadChecksumMismatch: what is stored elsewhere was changed.
    """
    if type(args) is not list:
        return args
    args = [external.get(each) for each in args]
    return opened(args[0], meta) if are_encoded(args) else args


def is_closed(value: Any) -> bool:
    """Whether a value is encoded, or stored elsewhere by this site."""
    return is_encoded(value) or external.is_reference(value)
