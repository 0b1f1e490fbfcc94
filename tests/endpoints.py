"""A valid request for every endpoint, to be changed into one that is refused."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import orjson
from django.test import override_settings

from tests.access import test_walk_http as walk
from tests.access.scenes import Scene
from tests.described import path_of
from tests.ojs_client import OJSClient

OPTIONS: dict[str, Any] = {"FLARE": {"ENABLED": True}, "API_KEY_CACHE": 0, "MAX_WAIT": 0}


def doors_by_path() -> dict[tuple[str, str], walk.Door]:
    """Method and path, as in the OpenAPI document → the endpoint."""
    return {(door.method, path_of(door.path)): door for door in walk.doors()}


def name_of(door: walk.Door) -> str:
    """The resource and action of its command, without the binding."""
    return door.command.partition(" ")[2]


@dataclass
class Stage:
    """A valid request, and ways to change it."""

    door: walk.Door
    scene: Scene
    keys: dict[str, str]
    """`everything` permits the endpoint."""

    @property
    def usual(self) -> walk.Said:
        """The valid request."""
        return walk.HOW.get(self.door.command, walk.NOTHING)(self.scene)

    def send(
        self,
        *,
        key: str | None = None,
        said: walk.Said | None = None,
        path: str = "",
        body: bytes | None = None,
        query: str = "",
        options: dict[str, Any] | None = None,
        **extra: Any,
    ) -> Any:
        said = said or self.usual
        path = path or walk.address(self.door, self.scene, said)
        if query:
            path += f"{'&' if '?' in path else '?'}{query}"
        if body is None:
            body = b"" if said.body is None else orjson.dumps(said.body)
        client = OJSClient(self.keys["everything"] if key is None else key)
        with override_settings(OJS=OPTIONS | options) if options else contextlib.nullcontext():
            if self.door.method == "GET":
                return client.get(path, **extra)
            extra["content_type"] = "application/json"
            return client.generic(self.door.method, path, body, **extra)
