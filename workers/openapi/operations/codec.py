"""The codec server."""

from __future__ import annotations

from jobs.errors import NotInstalled
from jobs.spec.codec_requests import CodecRequest

from ..operation import Operation, Reply
from ..refusals import refuses
from ..schema import array, obj, text

NO_KEYS = refuses(NotInstalled, "This server has no keys.")
SEALED = {
    "data": "AQAAABRh0f4=",
    "metadata": {"encoding": "binary/encrypted", "encryption_key_id": "key-2026-02"},
}
CLEAR = {
    "data": "W3siY3VzdG9tZXJfaWQiOiAiY3VzdF8xMjMifV0=",
    "metadata": {"encoding": "json/plain"},
}
PAYLOADS = obj(
    "payloads",
    payloads=array(
        obj(
            "data metadata",
            data=text("Base64."),
            metadata=obj("encoding", encoding=text(), encryption_key_id=text()),
        )
    ),
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/ojs/codec/encode"): Operation(
        "Codec",
        "Encode payloads",
        {200: Reply("The payloads, in the same order.", PAYLOADS, {"payloads": [SEALED]})},
        "OJS encryption §9.2, with the site's own codecs and its current key.",
        body=CodecRequest,
        example={"payloads": [CLEAR]},
        refusals=NO_KEYS,
    ),
    ("POST", "/ojs/codec/decode"): Operation(
        "Codec",
        "Decode payloads",
        {200: Reply("The payloads, in the same order.", PAYLOADS, {"payloads": [CLEAR]})},
        "OJS encryption §9.2. The audit records who asked.",
        body=CodecRequest,
        example={"payloads": [SEALED]},
        refusals=NO_KEYS,
    ),
}
