"""The address of Rota beside the HTTP endpoints, in the ASGI server's manifest."""

from __future__ import annotations

import asyncio

import pytest
import websockets

from jobs.http import endpoints
from tests import processes
from tests.bindings.listening import serving_rota

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def start(tmp_path, transactional_db):
    """Start the ASGI server: `with start(ROTA_IN_SERVER=0) as process:`."""

    def begin(**options):
        return serving_rota("front door", tmp_path, ALLOW_ANONYMOUS=1, **options)

    return begin


def manifest(port):
    status, document = processes.Api(f"http://127.0.0.1:{port}").call("GET", "/ojs/manifest")
    assert status == 200
    return document


def handshake(port):
    """The status of a handshake: 101, or that of the refusal."""

    async def opened():
        try:
            async with websockets.connect(f"ws://127.0.0.1:{port}/work", proxy=None):
                return 101
        except websockets.InvalidStatus as refusal:
            return refusal.response.status_code

    return asyncio.run(opened())


def test_it_is_where_the_manifest_was_asked_for(start):
    with start() as process:
        found = manifest(process.port)
        assert handshake(process.port) == 101

    assert found["endpoints"]["rota"] == f"ws://127.0.0.1:{process.port}/work"
    assert "rota" in found["protocols"]


def test_it_is_at_a_server_of_its_own_while_one_runs(start):
    with start() as process:
        endpoints.announce("rota", "ws://*:8081/work")
        found = manifest(process.port)

    assert found["endpoints"]["rota"] == "ws://127.0.0.1:8081/work"


def test_the_site_may_name_it(start):
    with start(ROTA_URL="wss://jobs.example.com/work") as process:
        found = manifest(process.port)

    assert found["endpoints"]["rota"] == "wss://jobs.example.com/work"


def test_it_may_be_switched_off(start):
    with start(ROTA_IN_SERVER=0) as process:
        found = manifest(process.port)
        assert handshake(process.port) == 404

    assert "rota" not in found["endpoints"]
