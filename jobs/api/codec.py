"""Codec server (OJS encryption §9): encodes and decodes for those who have no keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rest_framework.response import Response

from ..access.audit import of_caller, record_action
from ..http.base import OJSViewSet
from ..http.request import Request
from ..payloads import server
from ..spec.codec_requests import CodecRequest


class CodecViewSet(OJSViewSet):
    """`/ojs/codec`, which `CODEC_SERVER_URL` names as `https://…/ojs`."""

    resource = "codec"

    def decode(self, request: Request) -> Response:
        """Decode payloads; the audit records for which key."""
        return self._each(server.decoded, record="view_job_args")

    def encode(self, request: Request) -> Response:
        return self._each(server.encoded)

    def _each(self, change: Callable[[Any, str], dict[str, Any]], record: str = "") -> Response:
        given = CodecRequest.payloads.read(self.read(required=True))
        found = [change(each, f"payloads[{index}]") for index, each in enumerate(given)]
        if record:
            actor = of_caller(self.caller, self.request)
            record_action(actor, record, kind="job", count=len(found))
        response = Response({"payloads": found})
        response["Cache-Control"] = "no-store"
        return response
