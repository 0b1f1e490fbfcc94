"""REST framework's parser of the JSON object in a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.parsers import BaseParser

from ..spec.fields import Document
from .body import read_object
from .dialects import MEDIA_TYPE
from .request import Readable


class OJSParser(BaseParser):
    """Strict JSON, in either of the supported media types, gzipped or not (OJS HTTP §6.1)."""

    media_type = MEDIA_TYPE

    def parse(  # type: ignore[override] # None is no document, where REST framework has `{}`
        self,
        stream: Readable,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Document | None:
        """Return the object, or None for an empty body; raises what `read_object` does."""
        assert parser_context is not None
        view = parser_context["view"]
        return read_object(stream, parser_context["request"].META, view.mends.get(view.action))
