"""Base64 (RFC 4648) as others send it."""

from __future__ import annotations

import base64


def from_base64(text: str, *, altchars: bytes | None = None) -> bytes:
    """Return the bytes that a text spells.

    Raises:
        ValueError: it is not base64; a character of another alphabet is not skipped.
    """
    # Not only `binascii.Error`, its subclass, is raised: also for text that is not ASCII.
    return base64.b64decode(text, altchars=altchars, validate=True)
