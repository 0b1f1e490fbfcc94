"""Request bodies with a deadline: a client that never finishes one does not keep a thread.

granian calls the application when a request's head is complete, and a read of the body then blocks
its thread until the client has sent it. Only the end of the connection ends such a read. So the
read runs in a second thread, and the request waits for it: for a moment in any case, and until the
deadline as long as not too many other bodies are awaited as well. A proxy that buffers requests
does this better (README); this protects a server that has none in front.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from jobs.conf import ojs_settings

MOMENT = 0.05
"""Seconds any body may take, however many others are unfinished: most have already arrived."""
FLUSHED = 0.02
"""Seconds for a refusal to leave the server before its connection is cut."""
KEPT = 64
"""Threads that are kept for later reads."""

BROKEN = "The connection ended before the request body did."

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Unfinished(OSError):
    """The body did not arrive in time; Django treats this as a broken connection."""


class BodyDeadline:
    """A WSGI application around another one, whose bodies arrive in time or not at all."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        declared = environ.get("CONTENT_LENGTH")
        if (
            declared == "0"
            or (not declared and "HTTP_TRANSFER_ENCODING" not in environ)
            or not ojs_settings.BODY_TIMEOUT
        ):
            return self._application(environ, start_response)
        body = environ["wsgi.input"] = Body(environ["wsgi.input"], declared or "")
        said: list[Any] = []
        parts = self._application(environ, lambda *about: said.append(about))
        if not body.refusal:
            start_response(*said[-1])
            return parts
        status, headers, content = _refused(said[-1], parts, body.refusal)
        # The connection must end, for granian's read goes on until then, and a server has to end it
        # when the response is shorter than announced.
        is_cut = environ.get("SERVER_SOFTWARE") == "Granian"
        headers = [(name, text) for name, text in headers if name.lower() != "content-length"]
        start_response(status, [*headers, ("Content-Length", str(len(content) + is_cut))])
        return _cut_short(content) if is_cut else [content]


def _refused(said: Any, parts: Iterable[bytes], refusal: str) -> tuple[str, list[Any], bytes]:
    """Return the application's own refusal if it has one, else a plain one."""
    status, headers, *_ = said
    content = b"".join(parts)
    if hasattr(parts, "close"):
        parts.close()
    if not status.startswith("408 "):
        content = f"{refusal}\n".encode()
        status, headers = "408 Request Timeout", [("Content-Type", "text/plain; charset=utf-8")]
    return status, headers, content


def _cut_short(content: bytes) -> Iterator[bytes]:
    yield content
    # Sent together with what follows, it would be lost.
    time.sleep(FLUSHED)


class Body:
    """The stream that an application reads from: `wsgi.input`."""

    def __init__(self, stream: Any, declared: str) -> None:
        self._stream = stream
        self._left = int(declared) if declared.isdecimal() else None
        self._until = 0.0
        self.refusal = ""
        """Why it was not read to its end."""

    def read(self, size: int | None = None) -> bytes:
        """Read up to `size` bytes.

        Raises:
            Unfinished: they did not arrive in time, or the client is gone.
        """
        if size is None or size < 0:
            size = self._left
        elif self._left is not None:
            size = min(size, self._left)
        if size == 0:
            return b""
        found: bytes = self._in_time(self._stream.read, size)
        if self._left is not None:
            self._left -= len(found)
            if size is not None and len(found) < size:
                raise self._refuse(BROKEN)
        return found

    def readline(self, size: int | None = None) -> bytes:
        found: bytes = self._in_time(self._stream.readline, size)
        if self._left is not None:
            self._left -= len(found)
        return found

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def readlines(self, hint: int | None = None) -> list[bytes]:
        return list(self)

    def _in_time(self, read: Callable[..., bytes], size: int | None) -> bytes:
        if self.refusal:
            raise Unfinished(self.refusal)
        limit = ojs_settings.BODY_TIMEOUT.total_seconds()
        now = time.monotonic()
        self._until = self._until or now + limit
        left = max(0.0, self._until - now)
        events: SimpleQueue[Any] = SimpleQueue()
        _begin(read, size, events)
        try:
            result = events.get(timeout=min(MOMENT, left))
        except Empty:
            try:
                with _awaited(self, partial(events.put, None)):
                    result = events.get(timeout=max(0.0, left - MOMENT))
            except Empty:
                late = f"The request body was not complete after {limit:g} s."
                raise self._refuse(late) from None
        if result is None:
            raise self._refuse("The request body was not complete, and others came meanwhile.")
        if isinstance(result, Exception):
            raise self._refuse(BROKEN)
        found: bytes = result
        return found

    def _refuse(self, refusal: str) -> Unfinished:
        self.refusal = refusal
        return Unfinished(refusal)


@contextlib.contextmanager
def _awaited(body: Body, give_way: Callable[[], None]) -> Iterator[None]:
    """Count a body that takes longer; beyond the cap, those awaited longest are given up.

    The newest stays: a client that finishes its bodies is among the newest, and one that collects
    unfinished ones among the oldest.
    """
    with _lock:
        _unfinished[body] = give_way
        while len(_unfinished) > ojs_settings.MAX_UNFINISHED_BODIES:
            _unfinished.pop(next(iter(_unfinished)))()
    try:
        yield
    finally:
        with _lock:
            _unfinished.pop(body, None)


_lock = threading.Lock()
_unfinished: dict[Body, Callable[[], None]] = {}
"""Bodies that take longer than a moment, oldest first, and the function that gives each one up."""


# Threads that read


def _begin(read: Callable[..., bytes], size: int | None, events: SimpleQueue[Any]) -> None:
    """Read in another thread; the result or the exception is put into `events`."""
    try:
        reader = _idle.pop()
    except IndexError:
        reader = _Reader()
    reader.tasks.put((read, size, events))


_idle: deque[_Reader] = deque()


class _Reader:
    def __init__(self) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._run, name="request-body", daemon=True).start()

    def _run(self) -> None:
        while True:
            read, size, events = self.tasks.get()
            try:
                result: Any = read(size)
            except Exception as problem:
                result = problem
            # The server resumes handling a connection when nothing refers to its body any more.
            del read
            if len(_idle) >= KEPT:
                events.put(result)
                return
            _idle.append(self)
            events.put(result)
            del events, result
