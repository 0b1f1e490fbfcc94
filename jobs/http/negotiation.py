"""Chooses parser and renderer; never answers 406, and 415 only for a compression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from . import dialects
from .request import Meta

Renderer = TypeVar("Renderer", bound=BaseRenderer)


class Negotiation(BaseContentNegotiation):
    """Follows the client's dialect; a client that accepts none of our types gets the first one."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        # There is only one. An empty body needs no type, and the parser names the types it accepts.
        return next(iter(parsers))

    def select_renderer(
        self,
        request: Request,
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        renderer = renderer_for(request.META, list(renderers))
        return renderer, renderer.media_type


def renderer_for(meta: Meta, renderers: list[Renderer]) -> Renderer:
    """The renderer of the type that the client accepts; the first one if there is none."""
    if len(renderers) > 1:
        wanted = dialects.media_type(meta)
        for renderer in renderers:
            if renderer.media_type == wanted:
                return renderer
    return renderers[0]
