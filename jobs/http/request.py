"""A request as the views see it."""

from __future__ import annotations

from typing import Any

from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest


class Request:
    """What came in, with the names that views written for REST framework use.

    That framework's own request parses bodies, logs in and negotiates, each on first use and behind
    `__getattr__`; Django's reads paths, types and lengths before anybody asks. Here nothing of it
    is left to do, and it took a good part of a small request's time.
    """

    __slots__ = ("META", "__weakref__", "_django", "method", "ojs_request_id", "path")

    def __init__(self, environ: dict[str, Any]) -> None:
        """Take a WSGI environment whose path is plain: ASCII, and not below a prefix."""
        self.META = environ
        self.method: str = environ["REQUEST_METHOD"].upper()
        self.path: str = environ["PATH_INFO"]
        self.ojs_request_id = ""
        self._django: HttpRequest | None = None

    @classmethod
    def of(cls, request: HttpRequest) -> Request:
        self = cls.__new__(cls)
        self.META = request.META
        self.method = request.method or ""
        self.path = request.path
        self.ojs_request_id = ""
        self._django = request
        return self

    @property
    def _request(self) -> HttpRequest:
        if self._django is None:
            try:
                self._django = WSGIRequest(self.META)
            except AttributeError as problem:
                # As it is, it would say that this property is missing.
                raise ValueError(f"Django cannot read this request: {problem}") from problem
        return self._django

    @property
    def query_params(self) -> Any:
        return self._request.GET

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes of the body, which ends by itself or by `Content-Length`."""
        if self._django is None and self.META.get("wsgi.input_terminated"):
            body: bytes = self.META["wsgi.input"].read(size)
            return body
        return self._request.read(size)

    def __getattr__(self, name: str) -> Any:
        # What Django's request is made from is not looked for there.
        if name in OWN:
            raise AttributeError(name)
        return getattr(self._request, name)


OWN = {*Request.__slots__, "_request"}
