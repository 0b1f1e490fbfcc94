"""Encoded payloads as JSON: their marker, and the names of encodings (OJS encryption §5.2, §5.3).

Only those who have the keys read what is inside. To everything else an encoded payload is a value
like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ENCODED = "ojs_encoded"
"""The member that marks an encoded value."""
ENCODINGS = "ojs.codec.encodings"
"""The member of `meta` with the encodings of the arguments, in the order they were applied."""
KEY_ID = "ojs.codec.key_id"
"""The member of `meta` that names the key."""
REFERENCE = "__ojs_ref"
"""The member with the URI of a value that is stored elsewhere (OJS payload limits §5)."""
PLAIN = "/plain"


def is_encoded(value: Any) -> bool:
    return type(value) is dict and value.get(ENCODED) is True


def are_encoded(args: Any) -> bool:
    """Whether arguments are an encoded list, which only its reader can check."""
    return type(args) is list and len(args) == 1 and is_encoded(args[0])


def joined(encodings: Sequence[str]) -> str:
    """Name several encodings as one, the last one first: `binary/encrypted+gzip`."""
    last, *earlier = reversed(encodings)
    return "+".join([last, *(name.removesuffix(PLAIN) for name in earlier)])


def separated(encoding: str) -> list[str]:
    """Undo `joined()`."""
    last, *earlier = encoding.split("+")
    return [*(name if "/" in name else name + PLAIN for name in reversed(earlier)), last]
