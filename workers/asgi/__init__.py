"""The front door: one ASGI application for everything that is served over HTTP and WebSocket."""

from .application import JobServer

__all__ = ["JobServer"]
