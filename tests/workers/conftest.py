"""The shop of the tests of `runjobworker`: its workers beside the database, or over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.processes import free_port
from tests.workers.site import Shop


@pytest.fixture
def shop(tmp_path: Any, database_url: str) -> Shop:
    return Shop(tmp_path, database_url)


@pytest.fixture(params=["direct", "http"])
def either_shop(request: Any, tmp_path: Any, database_url: str) -> Iterator[Shop]:
    site = Shop(tmp_path, database_url, request.param)
    if site.over == "direct":
        yield site
        return
    with site.server(free_port()):
        yield site
