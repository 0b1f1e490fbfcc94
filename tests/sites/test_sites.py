"""The same site in two conditions: with nothing special, and with all that needs no package.

`make test-sites` tries each condition by itself, on two versions of Django, and those that need
further packages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import dj_database_url
import pytest

from tests.database import connection
from tests.once import once_is_enough
from tests.processes import ROOT, empty_database

from .conditions import PLAIN, TOGETHER
from .story import Site, live_through

pytestmark = pytest.mark.slow


@pytest.fixture
def databases(condition, request) -> Iterator[dict[str, Any]]:
    """On PostgreSQL, empty databases; on SQLite the site has files."""
    with ExitStack() as stack:
        if connection.vendor == "sqlite":
            yield {}
            return
        url = request.getfixturevalue("database_url")
        made = {name: stack.enter_context(empty_database(url)) for name in condition.databases}
        yield {name: dj_database_url.parse(url) for name, url in made.items()}


@pytest.mark.parametrize(
    "condition",
    [pytest.param(PLAIN, marks=once_is_enough), TOGETHER],
    ids=lambda condition: condition.name,
)
def test_a_site_lives_through_the_story(condition, databases, tmp_path):
    live_through(Site(condition, tmp_path, sys.executable, databases, ROOT))
