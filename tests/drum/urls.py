"""Drum over HTTP: who is there."""

from __future__ import annotations

from typing import Any

from django.urls import path

from jobs.http.base import OJSViewSet, Response
from workers.fleet import directory

from . import PROTOCOL


class WorkerViewSet(OJSViewSet):
    protocol = PROTOCOL.name
    binding = PROTOCOL.named_in_table
    resource = "workers"

    def list(self, request: Any) -> Response:
        return Response({"workers": directory.active(caller=self.caller)})


urlpatterns = [path("drum/v1/workers", WorkerViewSet.as_view({"get": "list"}))]
