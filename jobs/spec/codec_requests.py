"""Requests to the codec server (OJS encryption §9.2)."""

from __future__ import annotations

from .members import Array, Members, Object, Text

MOST = 1_000
LONGEST = 2**26
"""Characters of base64."""


class Metadata(Members):
    encoding = Text(
        "Several are joined, the last one first: `binary/encrypted+gzip`. `json/plain` is none."
    ).required()
    encryption_key_id = Text("The key that decrypts it.")


class CodecPayload(Members, about="A payload (OJS encryption §5.1)."):
    data = Text("Base64.", longest=LONGEST).required()
    metadata = Object("How it is encoded.", of=Metadata).required()


class CodecRequest(Members):
    payloads = Array(of=CodecPayload, least=1, most=MOST).required()
