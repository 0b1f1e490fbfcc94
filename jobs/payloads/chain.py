"""Chain of codecs of this site: JSON values to encoded ones, and back (OJS encryption §5, §8)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
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
    PLAIN,
    are_encoded,
    is_encoded,
    joined,
    separated,
)
from ..spec.strict_base64 import from_base64
from . import external
from .codecs import KEY_ID as PAYLOAD_KEY
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
    for path, kind in kinds():
        try:
            codec = kind()
        except TypeError as problem:
            raise ImproperlyConfigured(
                f'OJS["CODECS"]: {path} cannot be made without arguments: {problem}'
            ) from problem
        if not isinstance(getattr(codec, "encoding", None), str):
            raise ImproperlyConfigured(f'OJS["CODECS"]: {path} has no encoding.')
        made.append(codec)
    return tuple(made)


def kinds() -> list[tuple[str, Callable[[], Codec]]]:
    """Return the paths of `OJS["CODECS"]`, with what they name.

    Raises:
        ImproperlyConfigured: one of them cannot be imported.
    """
    try:
        return [(path, import_string(path)) for path in ojs_settings.CODECS]
    except ImportError as problem:
        raise ImproperlyConfigured(f'OJS["CODECS"]: {problem}') from problem


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "OJS":
        chain.cache_clear()


setting_changed.connect(_reset, dispatch_uid="ojs_codecs")


def encode(data: bytes, codecs: Sequence[Codec] | None = None) -> tuple[Payload, list[str]]:
    """Pass bytes through codecs, by default the chain of this site.

    Returns:
        The payload, and the names of the codecs that changed it, in order.
    """
    payload, applied = Payload(data), []
    for codec in chain() if codecs is None else codecs:
        encoded = codec.encode(payload)
        if encoded is not payload:
            payload = encoded
            applied.append(codec.encoding)
    return payload, applied


def like(encodings: Sequence[str]) -> tuple[Codec, ...]:
    """Return codecs that keep as secret what encodings keep: the chain, unless it has changed.

    Raises:
        CodecError: there is no such codec here.
    """
    names = {codec.encoding for codec in chain()}
    return chain() if names.issuperset(secret(encodings)) else tuple(map(_codec, encodings))


def secret(encodings: Sequence[str]) -> list[str]:
    """Return those that hide: all but compressions."""
    return [name for name in encodings if not name.endswith(PLAIN)]


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


def sealed(value: Any, codecs: Sequence[Codec] | None = None) -> Any:
    """Return a JSON value in its encoded form, which says by itself how to decode it."""
    payload, applied = encode(orjson.dumps(value), codecs)
    if not applied:
        return value
    return _element(payload, applied) | {"key_id": payload.metadata.get(PAYLOAD_KEY, "")}


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
    if not isinstance(text, str) or not isinstance(encoding, str):
        raise CodecError("An encoded payload has the members 'encoding' and 'data'.")
    encodings = encodings_of(value, meta)
    key_id = value.get("key_id") or (meta or {}).get(KEY_ID) or ""
    return parsed(text, encodings, str(key_id))


def encodings_of(value: Mapping[str, Any], meta: Mapping[str, Any] | None) -> list[str]:
    """Return the encodings of an encoded value, in the order they were applied."""
    named = meta.get(ENCODINGS) if meta else None
    if isinstance(named, list) and named and all(isinstance(name, str) for name in named):
        return list(named)
    return separated(str(value.get("encoding", "")))


def open_all(values: Sequence[Any]) -> list[Any]:
    """`opened()` for results of several jobs; those of a nested workflow are a list."""
    return [open_all(each) if type(each) is list else opened(each) for each in values]


def open_error(
    message: str, backtrace: list[str] | None, details: Any
) -> tuple[str, list[str] | None]:
    """Return the message and the backtrace of an error in clear.

    Of a job with encoded arguments, what may quote them is encoded in the error's details.

    Raises:
        CodecError: they cannot be decoded.
    """
    clear = opened(details) if is_encoded(details) else {}
    return clear.get("message", message), clear.get("backtrace", backtrace)


def parsed(text: str, encodings: Sequence[str], key_id: str) -> Any:
    """Decode base64 text to the JSON value inside.

    Raises:
        CodecError: it cannot be decoded, or is not JSON inside.
    """
    try:
        data = from_base64(text)
    except ValueError:
        raise CodecError("The data of an encoded payload is not base64.") from None
    try:
        return orjson.loads(decode(Payload(data, {PAYLOAD_KEY: key_id}), encodings))
    except orjson.JSONDecodeError:
        raise CodecError("The payload is not JSON.") from None


# Arguments


def seal_args(args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return encoded arguments, and the members of `meta` that say how (§5.2, §5.3)."""
    payload, applied = encode(orjson.dumps(args))
    if not applied:
        return external.put(args), {}
    meta: dict[str, Any] = {ENCODINGS: applied}
    key_id = payload.metadata.get(PAYLOAD_KEY)
    if key_id:
        meta[KEY_ID] = key_id
    return external.put([_element(payload, applied)]), meta


def open_args(args: Any, meta: Mapping[str, Any]) -> Any:
    """Return arguments in clear, those that are stored elsewhere included.

    Raises:
        CodecError: they cannot be decoded.
        PayloadChecksumMismatch: what is stored elsewhere was changed.
        StorageUnavailable: what is stored elsewhere cannot be read now.
    """
    if type(args) is not list:
        return args
    args = [external.get(each) for each in args]
    return opened(args[0], meta) if are_encoded(args) else args


def is_closed(value: Any) -> bool:
    """Whether a value is encoded, or stored elsewhere by this site."""
    return is_encoded(value) or external.is_reference(value)
