"""The floor: a DRF view that does nothing, with DRF's default configuration.

Served in the product's own configuration (`floor_settings`); the product carries none of it.
"""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView


class Floor(APIView):
    """Its authentication, negotiation, parsers and renderers are DRF's own defaults."""

    def post(self, request: Any) -> Response:
        return Response({})


urlpatterns = [path("floor", Floor.as_view())]
