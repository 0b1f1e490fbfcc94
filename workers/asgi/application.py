"""ASGI application: reads requests on the loop, answers them in threads, and waits.

A request is read completely, then answered by the site's WSGI application in one of a limited
number of threads. A response that is not available yet comes back to the loop
(`jobs.http.waiting`), which waits for it without a thread. The loop writes streams and WebSockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, Self

from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.http import StreamingHttpResponse
from django.urls import NoReverseMatch, get_script_prefix, reverse

from jobs.conf import ojs_settings, path_prefixes
from jobs.errors import BackendUnavailable, InvalidRequest
from jobs.http.base import failed
from jobs.http.fast_path import Answer, Parked, ParkedResponse, StreamedResponse, WholeResponse
from jobs.http.hosts import check_host
from jobs.http.loop import Loop, Stream
from jobs.http.verbs import Unsent
from jobs.store import readiness
from workers import code_schedules
from workers.alerts import watch

from .bodies import Bodies, Late, Unfinished
from .environ import environ_of, path_of
from .gather import Gatherer
from .lifespan import Lifespan
from .loop import ServerLoop
from .sockets import NOT_FOUND, ASGISocket, Serve, sockets_of
from .threads import Threads

logger = logging.getLogger("workers.asgi")

PAGES = 4
"""Threads for everything but worker protocols: a slow page must not keep workers waiting."""
LENGTH = "content-length"
STATUS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
UNUSUAL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|connection:")
"""In headers: what must not be there, and what concerns the server."""
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""
Headers = list[tuple[str, str]]


class Reply(NamedTuple):
    """A response, ready to be sent."""

    status: int
    headers: Headers
    content: bytes = b""
    stream: Stream | None = None
    unsent: Unsent | None = None

    def written(self, first: bytes, last: bytes) -> bytes | None:
        """Return the response as HTTP/1.1; None if it must be sent with ASGI messages.

        Args:
            first: complete lines that the server adds before the headers.
            last: those that it adds after them.
        """
        lines = [f"{name.lower()}: {text.strip()}" for name, text in self.headers]
        if not any(line.startswith(LENGTH) for line in lines):
            lines.append(f"{LENGTH}: {len(self.content)}")
        status = STATUS.get(self.status)
        if self.stream is not None or status is None or UNUSUAL.search("".join(lines)):
            return None
        head = "\r\n".join(lines).encode("latin-1")
        return b"%b%b%b\r\n%b\r\n%b" % (status, first, head, last, self.content)


class Later(NamedTuple):
    """A response that is not available yet, and the function that makes a reply of it."""

    parked: Parked
    reply: Callable[[Answer], Reply]

    def written(self, first: bytes, last: bytes) -> None:
        """There is nothing to write yet."""


class JobServer:
    """Serves a site and its worker protocols.

    Args:
        site: the site's WSGI application. It may have a method `respond(environ)`, which returns a
            `Reply`, a `Later`, or None for a request that goes to the application itself; and
            `gathered(environ)`, which returns a key for requests that may be answered together by
            `respond_together(key, environs)`.
        is_ours: whether a path belongs to a worker protocol; all others have separate threads.
        sockets: path → the function that serves a WebSocket there.
        otherwise: an ASGI application that serves all other paths, and gets lifespan events.
            Without one, `site` serves them.
    """

    def __init__(
        self,
        site: Any,
        *,
        is_ours: Callable[[str], bool],
        sockets: Mapping[str, Serve] | None = None,
        otherwise: Application | None = None,
    ) -> None:
        self._sockets = sockets or {}
        self._site = site
        self._respond: Callable[[dict[str, Any]], Reply | Later | None] = getattr(
            site, "respond", lambda environ: None
        )
        self._gathered: Callable[[dict[str, Any]], Any] = getattr(
            site, "gathered", lambda environ: None
        )
        self._is_ours = is_ours
        self._otherwise = otherwise
        self._running: _Running | None = None

    @classmethod
    def around(cls, application: Application) -> Self:
        """Put this application in front of a site's own ASGI application.

        Requests to the paths of OJS HTTP and of the worker protocols that are switched on, below
        the prefix where `ROOT_URLCONF` includes `workers.urls`, pass through the site's middleware
        and URLs in `SERVER_THREADS` threads, as under WSGI. Requests that wait or stream hold no
        thread. WebSockets at `/ojs/v1/ws` and at the paths of worker protocols (Rota's `/work`) are
        served as well. All other requests, WebSockets and lifespan events go to `application`
        unchanged.

        Args:
            application: for example `get_asgi_application()`, or Channels' `ProtocolTypeRouter`.

        Raises:
            ImproperlyConfigured: `ROOT_URLCONF` does not include `workers.urls`.
        """
        mount = _mount()
        prefixes = tuple(f"{mount}{prefix}" for prefix in path_prefixes(served=True))
        return cls(
            WSGIHandler(),
            is_ours=lambda path: path.startswith(prefixes),
            sockets=sockets_of(mount),
            otherwise=application,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if not self._serves(scope):
            assert self._otherwise is not None
            await self._otherwise(scope, receive, send)
        elif kind == "http":
            try:
                await self._http(scope, receive, send)
            except Exception:
                logger.exception("A request could not be answered: %s", scope["path"])
                raise
        elif kind == "lifespan":
            await self._lifespan(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            raise ValueError(f"This application serves HTTP and WebSocket, not {kind!r}.")

    @property
    def _run(self) -> _Running:
        """State that belongs to the loop; created here if the server sends no lifespan events."""
        if self._running is None:
            self._running = _Running()
        return self._running

    def _serves(self, scope: Scope) -> bool:
        """Whether this application serves the request, not the one behind it."""
        kind = scope["type"]
        if self._otherwise is None or kind == "lifespan":
            return True
        if kind not in ("http", "websocket"):
            return False
        path = path_of(scope)
        return self._is_ours(path) or (kind == "websocket" and path in self._sockets)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        behind = Lifespan(self._otherwise, scope)
        while True:
            try:
                message = await receive()
            except asyncio.CancelledError:
                # A second Ctrl-C: the server ends without a shutdown, and the loop with it.
                return
            if message["type"] == "lifespan.startup":
                self._run.loop.watch_for_the_end()
                code_schedules.thread.begin()
                watch.thread.begin()
                answer = await behind.tell(message)
                if answer["type"] == "lifespan.startup.failed":
                    await self._run.close()
                await send(answer)
            else:
                await self._run.close()
                await send(await behind.tell(message))
                return

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        socket = ASGISocket(scope, receive, send)
        await self._serve_socket(scope, socket)
        await socket.see_off()

    async def _serve_socket(self, scope: Scope, socket: ASGISocket) -> None:
        serve = self._sockets.get(path_of(scope))
        if serve is None:
            await socket.refuse(HTTPStatus.NOT_FOUND, NOT_FOUND)
            return
        try:
            check_host(socket.meta)
        except InvalidRequest as refusal:
            await socket.refuse(HTTPStatus.BAD_REQUEST, f"{refusal.message}\n")
            return
        loop = self._run.loop
        try:
            await loop.serve_socket(serve(loop, socket))
        except Exception:
            logger.exception("A WebSocket could not be served: %s", scope["path"])
            with contextlib.suppress(ConnectionError):
                await socket.close(1011, "internal error")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._finish(self._read_and_answer(scope, receive), scope, receive, send)

    async def _read_and_answer(self, scope: Scope, receive: Receive) -> Reply | Later | None:
        """Return the response; None if the client disconnects before its request is complete."""
        run = self._running or self._run
        environ = environ_of(scope)
        body: bytes | None = b""
        if environ["REQUEST_METHOD"] not in BODILESS or "CONTENT_LENGTH" in environ:
            try:
                body = await run.bodies.read(receive, environ)
            except Late as late:
                return await self._refuse(environ, str(late))
        if body is None:
            return None
        environ["wsgi.input"] = io.BytesIO(body)
        return await self._answer(environ)

    def answer_whole(self, scope: Scope, body: bytes) -> asyncio.Future[Reply | Later] | None:
        """Answer a POST that has arrived completely, without ASGI messages.

        Returns:
            A reply for the server to write, unless it streams or is a `Later`: `finish()` sends
            these. None for a request that needs `__call__`.
        """
        if len(body) > ojs_settings.MAX_BODY_SIZE or not self._serves(scope):
            return None
        try:
            environ = environ_of(scope)
            environ["wsgi.input"] = io.BytesIO(body)
            return self._answer(environ)
        except Exception:
            # The caller is a protocol, which could only close the connection.
            return None

    async def finish(
        self, reply: asyncio.Future[Reply | Later], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send what `answer_whole()` has returned, whatever it is."""
        try:
            await self._finish(reply, scope, receive, send)
        except Exception:
            logger.exception("A request could not be answered: %s", scope["path"])
            raise

    async def _finish(
        self,
        answer: Awaitable[Reply | Later | None],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        loop = self._run.loop
        try:
            reply = await answer
            if reply is None:
                return
            if isinstance(reply, Later):
                found = await _wait(loop, reply.parked, receive)
                if found is None:
                    return
                reply = reply.reply(found)
            elif reply.unsent is not None and await _has_left(receive):
                self.drop(reply)
                return
        except asyncio.CancelledError:
            # A second Ctrl-C, or the server has waited long enough.
            if not loop.ending.is_set():
                raise
            reply = _failed(scope, BackendUnavailable(readiness.ENDING))
        except Exception as problem:
            if not self._is_ours(path_of(scope)):
                raise
            reply = _failed(scope, problem)
        await _send(reply, loop, receive, send)

    def drop(self, reply: Reply | Later) -> None:
        """Take back what a response gives whose client has disconnected."""
        if isinstance(reply, Reply) and reply.unsent is not None:
            self._run.loop.keep(_take_back(self._run.loop, reply.unsent))

    def _answer(self, environ: dict[str, Any]) -> asyncio.Future[Reply | Later]:
        run = self._run
        view = self._gathered(environ)
        if view is not None:
            gatherer = run.gatherers.get(view)
            if gatherer is None:
                answer = partial(self._site.respond_together, view)
                gatherer = run.gatherers[view] = Gatherer(run.requests, answer)
            return gatherer.submit(environ)
        threads = run.requests if self._is_ours(environ["PATH_INFO"]) else run.pages
        return threads.submit(partial(self._call, environ))

    def _call(self, environ: dict[str, Any]) -> Reply | Later:
        return self._respond(environ) or call(self._site, environ)

    async def _refuse(self, environ: dict[str, Any], refusal: str) -> Reply:
        """The response to a request whose body did not arrive: the site's own if it has one."""
        environ["wsgi.input"] = Unfinished(refusal)
        reply = await self._answer(environ)
        if isinstance(reply, Later) or reply.status != HTTPStatus.REQUEST_TIMEOUT:
            plain = [("Content-Type", "text/plain; charset=utf-8")]
            reply = Reply(HTTPStatus.REQUEST_TIMEOUT, plain, f"{refusal}\n".encode())
        reply.headers.append(("Connection", "close"))
        return reply


def _failed(scope: Scope, problem: Exception) -> Reply:
    """Return the response to an exception, in the format of OJS HTTP."""
    response = failed(environ_of(scope), scope["path"], problem)
    return Reply(response.status_code, list(response.items()), response.content)


def _mount() -> str:
    """Return the prefix below which the site includes `workers.urls`: empty, or `/queue`."""
    end = "/ojs/v1/health"
    try:
        path = reverse("ojs:health")
    except NoReverseMatch as problem:
        raise ImproperlyConfigured(
            'JobServer.around() needs path("", include("workers.urls")) in ROOT_URLCONF.'
        ) from problem
    return path.removeprefix(get_script_prefix().rstrip("/")).removesuffix(end)


class _Running:
    """State that belongs to a running event loop."""

    def __init__(self) -> None:
        self.loop = ServerLoop()
        self.bodies = Bodies()
        self.requests = Threads(ojs_settings.SERVER_THREADS, "ojs-request")
        self.pages = Threads(PAGES, "ojs-page")
        self.gatherers: dict[Any, Gatherer[dict[str, Any], Reply | Later]] = {}
        self._watching = asyncio.get_running_loop().create_task(self.bodies.watch())

    async def close(self) -> None:
        await self.loop.close()
        self._watching.cancel()
        self.requests.close()
        self.pages.close()


def call(site: Any, environ: dict[str, Any]) -> Reply | Later:
    """Call a WSGI application and read its whole response."""
    started: list[Any] = []
    parts: Iterable[bytes] = site(environ, lambda *head: started.append(head))
    try:
        status, headers, *_ = started[-1]
        if isinstance(parts, ParkedResponse):
            return Later(parts.parked, partial(_with_headers, headers))
        if isinstance(parts, StreamedResponse):
            kept = [(name, text) for name, text in headers if name.lower() != LENGTH]
            return Reply(int(status[:3]), kept, b"", parts.stream)
        if environ["REQUEST_METHOD"] == "HEAD" and isinstance(parts, StreamingHttpResponse):
            # Not even read: its length is as unknown as that of the GET.
            return Reply(int(status[:3]), headers, stream=_nothing)
        unsent = parts.unsent if isinstance(parts, WholeResponse) else None
        return Reply(int(status[:3]), headers, b"".join(parts), unsent=unsent)
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            close()


async def _nothing(loop: Loop) -> AsyncIterator[bytes]:
    return
    yield


def _with_headers(headers: Headers, answer: Answer) -> Reply:
    """Add the headers that the site's middleware has put on the placeholder response."""
    # Except the length, which is that of the empty placeholder.
    own = {LENGTH, *(name.lower() for name in answer.headers)}
    added = [(name, text) for name, text in headers if name.lower() not in own]
    return Reply(answer.status, [*answer.headers.items(), *added], answer.content, answer.stream)


async def _until_gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _take_back(loop: ServerLoop, unsent: Unsent) -> None:
    try:
        await loop.in_thread(unsent)
    except Exception:
        # It comes back by itself when its reservation ends.
        logger.exception("What a disconnected client was given could not be taken back.")


async def _has_left(receive: Receive) -> bool:
    """Whether the client of a request that was read as a whole has disconnected by now."""
    message = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    if message.done():
        return message.result()["type"] == "http.disconnect"
    message.cancel()
    return False


async def _wait(loop: ServerLoop, parked: Parked, receive: Receive) -> Answer | None:
    """Return the response when it is available; None if the client disconnects before that."""
    waiting = asyncio.ensure_future(parked.waiting.on_loop(loop, parked.answer))
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            return waiting.result()
        if waiting.done() and not waiting.exception():
            unsent = waiting.result().unsent
            if unsent is not None:
                await _take_back(loop, unsent)
        return None
    finally:
        gone.cancel()
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])


async def _send(reply: Reply, loop: ServerLoop, receive: Receive, send: Send) -> None:
    if reply.stream is None:
        await _send_whole(reply, send)
        return
    await send(_start(reply, reply.headers))
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        async with contextlib.aclosing(reply.stream(loop)) as parts:  # type: ignore[type-var]
            while True:
                step = asyncio.ensure_future(anext(parts, None))
                await asyncio.wait([step, gone], return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    step.cancel()
                    await asyncio.wait([step])
                    return
                part = step.result()
                if part is None:
                    break
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
    finally:
        gone.cancel()
    await send({"type": "http.response.body", "body": b""})


async def _send_whole(reply: Reply, send: Send) -> None:
    headers = reply.headers
    if not any(name == "Content-Length" for name, _ in headers):
        headers = [*headers, ("Content-Length", str(len(reply.content)))]
    await send(_start(reply, headers))
    await send({"type": "http.response.body", "body": reply.content})


def _start(reply: Reply, headers: Headers) -> Scope:
    return {
        "type": "http.response.start",
        "status": reply.status,
        "headers": [
            (name.lower().encode("latin-1"), text.strip().encode("latin-1"))
            for name, text in headers
        ],
    }
