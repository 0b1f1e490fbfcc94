"""Real servers of AGQ and Rota, which check keys with each command."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests import processes
from tests.conftest import url_of_test_database

from .lines import AGQLine, RotaLine


@pytest.fixture(scope="module")
def agq_port(django_db_setup, tmp_path_factory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("agq")
    port = processes.free_port()
    environment = processes.environment(url_of_test_database(), AGQ_PORT=port, API_KEY_CACHE=0)
    with processes.manage(folder, environment, "runagq", name="agq") as process:
        process.wait_for("AGQ workers are served on")
        yield port
        assert "Traceback" not in process.output, process.output


@pytest.fixture(scope="module", params=processes.ROTA_SERVERS)
def rota_port(request, django_db_setup, tmp_path_factory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("rota")
    environment = processes.environment(url_of_test_database(), API_KEY_CACHE=0)
    with processes.rota_server(request.param, folder, environment) as process:
        yield process.port
        assert "Traceback" not in process.output, process.output


@pytest.fixture
def agq(agq_port) -> Iterator[Callable[[], AGQLine]]:
    """Open connections to AGQ; they are closed after the test."""
    lines: list[AGQLine] = []

    def connect(key: str = "") -> AGQLine:
        lines.append(AGQLine(agq_port))
        if key:
            assert lines[-1]("AUTH", key) == "OK"
        return lines[-1]

    yield connect
    for line in lines:
        line.close()


@pytest.fixture
def rota(rota_port) -> Iterator[Callable[..., RotaLine]]:
    """Open connections to Rota; they are closed after the test."""
    lines: list[RotaLine] = []

    def connect(key: str, **headers: str) -> RotaLine:
        lines.append(RotaLine(rota_port, key, headers))
        return lines[-1]

    yield connect
    for line in lines:
        line.close()
