"""Codecs (OJS encryption §5.1): bytes to other bytes, and back."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import ClassVar

from django.core.exceptions import ImproperlyConfigured

from . import keys

LARGEST = 256 * 1024 * 1024
"""Bytes that a compressed payload may have when it is unpacked."""
KEY_ID = "encryption_key_id"
VERSION = b"\x01"
"""The first byte of an encrypted payload: AES-256-GCM (§6.2)."""
NONCE, TAG = 12, 16


class CodecError(Exception):
    """A payload cannot be decoded. The message quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes, and what a codec must know to decode them."""

    data: bytes = field(repr=False)
    metadata: dict[str, str] = field(default_factory=dict)


class Codec:
    """One step of a chain, made without arguments. A subclass names its `encoding`."""

    encoding: ClassVar[str]

    def encode(self, payload: Payload) -> Payload:
        """Return the encoded payload, or the same object to leave this step out."""
        raise NotImplementedError

    def decode(self, payload: Payload) -> Payload:
        """
        Raises:
            CodecError: it is not what `encode` returns.
        """
        raise NotImplementedError


class Gzip(Codec):
    """Compresses, unless the result is larger (§7)."""

    encoding = "gzip/plain"

    def encode(self, payload: Payload) -> Payload:
        packing = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        packed = packing.compress(payload.data) + packing.flush()
        return Payload(packed, payload.metadata) if len(packed) < len(payload.data) else payload

    def decode(self, payload: Payload) -> Payload:
        unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            data = unpacking.decompress(payload.data, LARGEST)
        except zlib.error:
            raise CodecError("The payload is not gzip data.") from None
        if not unpacking.eof:
            raise CodecError("The payload is an incomplete gzip file, or too large.")
        return Payload(data, payload.metadata)


class Encryption(Codec):
    """AES-256-GCM with a random nonce for each payload (§6).

    The first of the site's keys encrypts; the payload names the one that decrypts it.
    """

    encoding = "binary/encrypted"

    def __init__(self) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as problem:
            raise ImproperlyConfigured(
                "Encryption needs the package cryptography: pip install 'django-ojs[encryption]'"
            ) from problem
        self._cipher, self._invalid = AESGCM, InvalidTag

    def encode(self, payload: Payload) -> Payload:
        key_id, key = keys.current()
        nonce = token_bytes(NONCE)
        sealed = self._cipher(key).encrypt(nonce, payload.data, None)
        return Payload(VERSION + nonce + sealed, payload.metadata | {KEY_ID: key_id})

    def decode(self, payload: Payload) -> Payload:
        key_id = payload.metadata.get(KEY_ID, "")
        key = keys.find(key_id)
        if key is None:
            raise CodecError(f"There is no key {key_id!r}.")
        data = payload.data
        if len(data) < len(VERSION) + NONCE + TAG or not data.startswith(VERSION):
            raise CodecError("The payload is not one of AES-256-GCM.")
        nonce, sealed = data[1 : NONCE + 1], data[NONCE + 1 :]
        try:
            return Payload(self._cipher(key).decrypt(nonce, sealed, None), payload.metadata)
        except self._invalid:
            raise CodecError(
                f"The payload was changed, or not encrypted with {key_id!r}."
            ) from None
