"""Serializes documents to JSON, for REST framework and for everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer

from .dialects import MEDIA_TYPE, MEDIA_TYPE_FOR_SDKS, PLAIN_JSON


def dumps(document: Any) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:
        # PostgreSQL returns 1e20 as an integer, and orjson does not write integers beyond 64 bits.
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


class OJSRenderer(BaseRenderer):
    """The media type of the binding (OJS HTTP §3.1)."""

    media_type = MEDIA_TYPE
    format = "json"
    # JSON is UTF-8; the media type has no such parameter.
    charset = None

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else dumps(data)


class PlainJSONRenderer(OJSRenderer):
    """For clients that accept `application/json`, but not the binding's media type."""

    media_type = PLAIN_JSON


class SDKRenderer(OJSRenderer):
    """For the public SDKs."""

    media_type = MEDIA_TYPE_FOR_SDKS
