"""One ASGI application for everything that is served over HTTP and WebSocket."""

from .application import JobServer
from .sockets import sockets_of

__all__ = ["JobServer", "sockets_of"]
