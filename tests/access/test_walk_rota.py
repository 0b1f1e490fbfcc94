"""Every part of Rota × every kind of key, on real connections: as the table promises."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from jobs import engine
from jobs.access import Binding, Command, commands
from tests import processes
from tests.conftest import url_of_test_database
from workers.bindings.rota.desk import PARTS, rule
from workers.bindings.rota.messages import Message
from workers.bindings.rota.session import REVOKED

from .kinds import KINDS, LABEL, Kind, Promise
from .scenes import SECRET, Scene, is_untouched, rows, scene

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture(scope="module")
def server(django_db_setup, tmp_path_factory) -> Iterator[int]:
    """The port of a `runrota` that looks at keys with each message."""
    folder = tmp_path_factory.mktemp("rota")
    port = processes.free_port()
    environment = processes.environment(url_of_test_database(), ROTA_PORT=port, API_KEY_CACHE=0)
    with processes.manage(folder, environment, "runrota", name="walk") as process:
        process.wait_for("Rota workers are served at")
        yield port
        assert "Traceback" not in process.output, process.output


def registration(s: Scene) -> dict[str, Any]:
    return {
        "worker_id": s.worker,
        "hostname": "box",
        "queues": [s.queue],
        "labels": [LABEL],
        "specs": [{"id": "email.send", "checksum": "v1"}],
    }


def said(part: str, s: Scene) -> dict[str, Any]:
    job_id = str(s.jobs["active"].pk)
    return {
        "registration": {"registration": registration(s)},
        "status": {"status": {"jobs": [{"job_id": job_id, "progress": 0.5}]}},
        "results": {"results": [{"job_id": job_id, "outcome": "succeeded"}]},
        "wanted": {"wanted": 1},
    }[part]


OUTSIDE = ("unauthenticated", "token_expired")


class Line:
    """A worker's connection; `closed` is the code it was closed with."""

    def __init__(self, port: int, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.closed = 0
        url = f"ws://127.0.0.1:{port}/work"
        self._open = contextlib.ExitStack()
        self.socket = self._open.enter_context(
            connect(url, additional_headers=headers, open_timeout=processes.PATIENCE, proxy=None)
        )

    def __call__(self, **message: Any) -> list[dict[str, Any]]:
        """What is answered, up to the answer of a heartbeat sent behind it."""
        heard: list[dict[str, Any]] = []
        try:
            self.socket.send(json.dumps({"type": "heartbeat"} | message))
            while not heard or heard[-1]["type"] == "assignment":
                heard.append(json.loads(self.socket.recv(processes.PATIENCE)))
        except ConnectionClosed as end:
            self.closed = end.rcvd.code if end.rcvd else 0
        return heard

    def close(self) -> None:
        self._open.close()

    def is_closed(self) -> bool:
        """Wait for the end of the connection."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.socket.recv(processes.PATIENCE)
        code: int | None = self.socket.protocol.close_code
        return code == REVOKED


def kept_its(promise: Promise, command: Command, answers: list[dict[str, Any]]) -> bool:
    shown = json.dumps(answers)
    match promise:
        case Promise.STRANGER:
            return not answers or answers[-1]["error"]["code"] in OUTSIDE
        case Promise.SCOPE:
            return f"needs the scope '{command.scopes[0]}'" in shown
        case Promise.UNTOUCHED:
            return SECRET not in shown
    return all(answer["type"] != "error" for answer in answers)


def walk(kind: Kind, port: int, mark: str) -> list[str]:
    key = kind.key(mark)
    s = scene(kind, mark)
    engine.register_specs({"email.send": "v1"})
    before, wrong = rows(), []
    handshake = rule("handshake")
    assert handshake is not None
    # What the key may when it comes; afterwards something may happen to it.
    at_first = dataclasses.replace(kind, became=None, is_good=True).promised(handshake)
    try:
        line = Line(port, key)
    except InvalidStatus as refusal:
        status = {Promise.STRANGER: 401, Promise.SCOPE: 403}.get(at_first)
        if refusal.response.status_code != status:
            wrong.append(f"handshake: {at_first}: {refusal.response.status_code}")
        return [f"{kind.name}: {each}" for each in wrong]
    if at_first is not Promise.DONE:
        wrong.append(f"handshake: {at_first}: it was let in")
    if kind.became:
        line(registration=registration(s), wanted=0)
        before = rows()
        kind.turn()
    for part in ("registration", "status", "wanted", "results"):
        declared = rule(part)
        assert declared is not None
        promise = kind.promised(declared)
        answers = line(**said(part, s))
        if not kept_its(promise, declared, answers):
            wrong.append(f"{part}: {promise}: {answers}")
        if promise is Promise.DONE:
            before = rows()
        elif not is_untouched(before):
            wrong.append(f"{part} changes what it must not")
    if kind.became and kind.promised(handshake) is Promise.STRANGER and not line.is_closed():
        wrong.append("the connection is not closed")
    line.close()
    return [f"{kind.name}: {each}" for each in wrong]


def test_every_part_keeps_what_the_table_promises(server):
    wrong = [each for number, kind in enumerate(KINDS) for each in walk(kind, server, f"-{number}")]

    assert not wrong, "\n".join(wrong)


def test_every_part_of_a_message_is_declared_and_nothing_else_is():
    assert {field.name for field in dataclasses.fields(Message)} == PARTS.keys()
    assert {row.name for row in commands(Binding.ROTA)} == {"handshake", *PARTS.values()}
