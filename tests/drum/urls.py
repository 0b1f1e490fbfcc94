"""Drum over HTTP: lists the workers."""

from __future__ import annotations

from django.urls import path
from rest_framework.response import Response

from jobs.http.authentication import ApiKeyAuthentication
from jobs.http.base import OJSViewSet
from jobs.http.request import Request
from workers.fleet import directory

from . import PROTOCOL


class DrumAuthentication(ApiKeyAuthentication):
    protocol = PROTOCOL.name


class WorkerViewSet(OJSViewSet):
    authentication_classes = [DrumAuthentication]
    binding = PROTOCOL.named_in_table
    resource = "workers"

    def list(self, request: Request) -> Response:
        return Response({"workers": directory.active(caller=self.caller)})


urlpatterns = [path("drum/v1/workers", WorkerViewSet.as_view({"get": "list"}))]
