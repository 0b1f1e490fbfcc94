"""`JobServer` around another ASGI application: routing, and the lifespan of both."""

from __future__ import annotations

import asyncio

import pytest
from django.core.exceptions import ImproperlyConfigured

from workers.asgi import JobServer


class Behind:
    """An application that records its requests."""

    def __init__(self):
        self.paths = []

    async def __call__(self, scope, receive, send):
        self.paths.append((scope["type"], scope.get("path")))


def ask(door, *scopes):
    """Request each, and return the statuses that were sent."""
    sent = []

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        sent.append(message)

    async def each():
        for scope in scopes:
            await door(scope, receive, send)

    asyncio.run(each())
    return [message["status"] for message in sent if "status" in message]


def scope(path, kind="http", **more):
    headers = [(b"host", b"testserver")]
    common = {"type": kind, "path": path, "headers": headers, "query_string": b""}
    return common | {"method": "GET"} | more


def live(application, *events):
    """Send lifespan events and return the types of the answers."""
    waiting, sent = list(events), []

    async def receive():
        return {"type": f"lifespan.{waiting.pop(0)}"}

    async def send(message):
        sent.append(message["type"].removeprefix("lifespan."))
        if message["type"] == "lifespan.startup.failed":
            raise ConnectionError("The server ends.")

    async def run():
        try:
            await JobServer.around(application)({"type": "lifespan"}, receive, send)
        except ConnectionError:
            assert waiting == list(events)[1:]

    asyncio.run(run())
    return sent


def test_a_server_that_ends_without_a_shutdown_hears_of_no_error():
    """As uvicorn does at a second Ctrl-C: what is left on the loop is cancelled."""

    async def run():
        sent, waiting = [], asyncio.Event()

        async def receive():
            if sent:
                waiting.set()
                await asyncio.Event().wait()
            return {"type": "lifespan.startup"}

        async def send(message):
            sent.append(message)

        task = asyncio.ensure_future(JobServer.around(answers)({"type": "lifespan"}, receive, send))
        await waiting.wait()
        task.cancel()
        await task

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "http"),
        ("/flare/v1/jobs", "http"),
        ("/work", "http"),
        ("/ojsx", "http"),
        ("/chat", "websocket"),
    ],
)
def test_what_is_no_workers_is_the_sites(path, kind, settings):
    settings.OJS = {"FLARE": {"ENABLED": False}}
    behind = Behind()

    assert ask(JobServer.around(behind), scope(path, kind)) == []
    assert behind.paths == [(kind, path)]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/shop/queue/ojs/v1/nothing", {}),
        ("/below/shop/queue/ojs/v1/nothing", {"root_path": "/below"}),
    ],
)
def test_the_prefix_of_the_include_is_heeded(path, more, settings, db):
    settings.ROOT_URLCONF = "tests.other_process"
    settings.MIDDLEWARE = []
    behind = Behind()

    statuses = ask(JobServer.around(behind), scope(path, **more), scope("/ojs/v1/nothing"))

    assert statuses == [404]
    assert behind.paths == [("http", "/ojs/v1/nothing")]


def test_a_site_without_the_urls_is_refused(settings):
    settings.ROOT_URLCONF = "django.contrib.auth.urls"

    with pytest.raises(ImproperlyConfigured, match="include"):
        JobServer.around(Behind())


async def refuses(scope, receive, send):
    raise ValueError("Django can only handle ASGI/HTTP connections, not lifespan.")


async def answers(scope, receive, send):
    for _ in range(2):
        event = await receive()
        await send({"type": f"{event['type']}.complete"})


async def fails(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no shop"})


async def breaks(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.complete"})
    raise ValueError("broken")


@pytest.mark.parametrize("application", [Behind(), refuses, answers, breaks])
def test_a_server_starts_and_ends_whatever_the_application_knows(application):
    assert live(application, "startup", "shutdown") == ["startup.complete", "shutdown.complete"]


def test_an_application_that_cannot_start_keeps_the_server_from_starting():
    assert live(fails, "startup", "shutdown") == ["startup.failed"]
