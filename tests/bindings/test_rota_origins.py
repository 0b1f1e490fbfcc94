"""Pages that may open a WebSocket without a key: only those of this site."""

from __future__ import annotations

import asyncio

import pytest
import websockets

from jobs.http.authentication import make_key
from tests.bindings.listening import serving_rota
from tests.once import once_is_enough
from tests.processes import ROTA_SERVERS

pytestmark = [once_is_enough, pytest.mark.django_db(transaction=True), pytest.mark.slow]

SITE = {
    "DJANGO_ALLOWED_HOSTS": "localhost,127.0.0.1,jobs.example.com",
    "DJANGO_CSRF_TRUSTED_ORIGINS": "https://app.example.org",
}


@pytest.fixture(scope="module", params=ROTA_SERVERS)
def served(request, django_db_setup, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rota")
    with serving_rota(request.param, folder, SITE, ALLOW_ANONYMOUS=1) as process:
        yield process


def status(port: int, origin: str | None, **headers: str) -> int:
    """The status of a handshake: 101, or that of the refusal."""

    async def handshake() -> int:
        url = f"ws://127.0.0.1:{port}/work"
        try:
            async with websockets.connect(
                url, origin=origin, additional_headers=headers, proxy=None
            ):
                return 101
        except websockets.InvalidStatus as refusal:
            return refusal.response.status_code

    return asyncio.run(handshake())


@pytest.mark.parametrize(
    "origin",
    [None, "http://localhost:8000", "https://jobs.example.com", "https://app.example.org"],
)
def test_clients_and_pages_of_this_site_connect_without_a_key(served, origin):
    assert status(served.port, origin) == 101


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1.nip.io"],
)
def test_pages_of_other_sites_do_not(served, origin):
    assert status(served.port, origin) == 403


def test_pages_of_other_sites_connect_with_a_key(served):
    _, key = make_key("page", scopes=["work"])

    assert status(served.port, "https://app.example.net", Authorization=f"Bearer {key}") == 101
