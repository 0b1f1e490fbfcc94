"""What the codec server does, and how the admin asks one (OJS encryption §9)."""

from __future__ import annotations

import base64
import http.client
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import URLError

import orjson
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..conf import ojs_settings
from ..errors import NotInstalled
from ..spec.codec_requests import CodecPayload, Metadata
from ..spec.encoded import ENCODINGS, is_encoded, joined, separated
from ..spec.encoded import KEY_ID as KEY_IN_META
from ..spec.fields import refuse, wrong_type
from ..spec.strict_base64 import from_base64
from . import chain, external
from .codecs import KEY_ID, CodecError, Payload

JSON_PLAIN = "json/plain"
REFERENCED = "json/reference"
"""This server's own: a reference to a stored argument, for which it has the storage."""
TIMEOUT = 10
LARGEST = 2**27
"""Bytes of a response."""


# The server


def decoded(given: Any, place: str) -> dict[str, Any]:
    """Decode one payload of a request.

    Raises:
        InvalidRequest: it is not a payload, or cannot be decoded.
        NotInstalled: this server has no keys.
        StorageUnavailable: it is stored elsewhere, and cannot be read now.
    """
    data, encoding, key_id = _read(given, place)
    try:
        if encoding == REFERENCED:
            value = external.get(_reference(data, place))
            if is_encoded(value):
                value = chain.opened({"key_id": key_id, **value})
            found = orjson.dumps(value)
        elif encoding == JSON_PLAIN:
            found = data
        else:
            found = chain.decode(Payload(data, {KEY_ID: key_id}), separated(encoding))
    except (CodecError, external.PayloadChecksumMismatch) as problem:
        raise refuse(place, f"The payload cannot be decoded: {problem}") from None
    except ImproperlyConfigured as problem:
        raise NotInstalled("This server has no keys.") from problem
    return _payload(found, {"encoding": JSON_PLAIN})


def encoded(given: Any, place: str) -> dict[str, Any]:
    """Encode one payload of a request, as `jobs.codecs.Encode` would.

    Raises:
        InvalidRequest: it is not a payload, or is encoded already.
        NotInstalled: this server has no keys.
    """
    data, encoding, _ = _read(given, place)
    if encoding != JSON_PLAIN:
        raise refuse(f"{place}.metadata.encoding", f"Only {JSON_PLAIN!r} can be encoded.")
    try:
        payload, applied = chain.encode(data)
    except ImproperlyConfigured as problem:
        raise NotInstalled("This server has no keys.") from problem
    named = joined(applied) if applied else JSON_PLAIN
    return _payload(payload.data, {"encoding": named, **payload.metadata})


def _read(given: Any, place: str) -> tuple[bytes, str, str]:
    if type(given) is not dict:
        raise wrong_type(place, "object", given)
    text = CodecPayload.data.under(given, place)
    metadata = CodecPayload.metadata.under(given, place)
    encoding = Metadata.encoding.under(metadata, f"{place}.metadata")
    key_id = Metadata.encryption_key_id.under(metadata, f"{place}.metadata") or ""
    try:
        return from_base64(text), encoding, key_id
    except ValueError:
        raise refuse(f"{place}.data", "It is not base64.") from None


def _reference(data: bytes, place: str) -> Any:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = None
    if not external.is_reference(found):
        raise refuse(f"{place}.data", "It is not a reference to the storage of this server.")
    return found


def _payload(data: bytes, metadata: Mapping[str, str]) -> dict[str, Any]:
    return {"data": base64.b64encode(data).decode(), "metadata": dict(metadata)}


# The client


class NoClearText(Exception):
    """The codec server did not decode: it is away, or refuses."""


def payload_of(value: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoded value, or a reference, as a payload for the codec server.

    Args:
        meta: of the job whose arguments these are; empty for other values.
    """
    key_id = str(value.get("key_id") or meta.get(KEY_IN_META) or "")
    if "data" not in value:
        return _payload(orjson.dumps(value), {"encoding": REFERENCED, "encryption_key_id": key_id})
    named = meta.get(ENCODINGS)
    encoding = joined(named) if isinstance(named, list) and named else str(value.get("encoding"))
    return {
        "data": value["data"],
        "metadata": {"encoding": encoding, "encryption_key_id": key_id},
    }


def ask(payloads: Sequence[Mapping[str, Any]], *, user: Any) -> list[Any]:
    """Let the codec server decode payloads, for a user of the admin.

    Raises:
        NoClearText: it did not.
    """
    url = f"{ojs_settings.CODEC_SERVER_URL.rstrip('/')}/codec/decode"
    request = urllib.request.Request(
        url,
        orjson.dumps({"payloads": payloads}),
        {"Authorization": f"Bearer {_token(user)}", "Content-Type": "application/json"},
    )
    try:
        with _opener.open(request, timeout=TIMEOUT) as response:
            text = response.read(LARGEST + 1)
    except (URLError, OSError, http.client.HTTPException, ValueError) as problem:
        # What it says is not quoted: it may be about the payload.
        reason = getattr(problem, "code", None) or type(problem).__name__
        raise NoClearText(f"The codec server does not answer: {reason}.") from problem
    try:
        found = [base64.b64decode(each["data"]) for each in orjson.loads(text)["payloads"]]
        values = [orjson.loads(each) for each in found]
    except (ValueError, LookupError, TypeError) as problem:
        raise NoClearText("The codec server's answer cannot be read.") from problem
    if len(values) != len(payloads):
        raise NoClearText("The codec server's answer is not complete.")
    return values


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token elsewhere."""

    def redirect_request(self, *args: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _token(user: Any) -> str:
    path = ojs_settings.CODEC_SERVER_TOKEN_FOR
    return str(import_string(path)(user)) if path else ojs_settings.CODEC_SERVER_TOKEN
