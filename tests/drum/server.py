"""Server of Drum.

Its lines are `join <worker> <queue>`, `beat <worker>`, `next <worker> <queue>` and
`done <worker> <job>`.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from jobs.access import authorize, find
from jobs.http.authentication import ANYBODY
from jobs.http.endpoints import url_of
from jobs.http.loop import Loop, Socket
from jobs.store.database import borrowed
from workers import protocol
from workers.liveness.presence import announced
from workers.protocol import Completion, Description

from . import PROTOCOL, SERVER, options


class DrumServer:
    def __init__(self, certificate: Any, pulse: Any) -> None:
        self._pulse = pulse

    async def run(self, host: str, port: int, stop: asyncio.Event, say: Any) -> None:
        async with await asyncio.start_server(self._serve, host, port):
            url = url_of(SERVER.schemes[0], host, port, public=options().URL)
            async with announced(in_thread, PROTOCOL.name, url):
                say(f"Drum workers are served on {url}.")
                await stop.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(f"{await in_thread(carry_out, *line.decode().split())}\n".encode())
        writer.close()


async def serve(loop: Loop, socket: Socket) -> None:
    """Serve a WebSocket of the ASGI server."""
    await socket.accept()
    while (said := await socket.receive()) is not None:
        await socket.send(await loop.in_thread(carry_out, *str(said).split()))


async def in_thread(function: Any, *arguments: Any) -> Any:
    def call() -> Any:
        with borrowed():
            return function(*arguments)

    return await sync_to_async(call)()


def carry_out(word: str, worker_id: str, about: str = "") -> str:
    authorize(ANYBODY, find(PROTOCOL.named_in_table, word))
    if word == "join":
        description = Description(
            queues=[about],
            protocol=PROTOCOL.name,
            heartbeat_timeout=options().HEARTBEAT_TIMEOUT,
        )
        protocol.register(worker_id, description)
        return "joined"
    if word == "beat":
        return str(protocol.beat(worker_id).state)
    if word == "next":
        jobs = protocol.fetch([about], worker_id=worker_id)
        return str(jobs[0].id) if jobs else "nothing"
    (outcome,) = protocol.ack([Completion(UUID(about), worker_id)])
    return str(outcome.error or outcome.state)
