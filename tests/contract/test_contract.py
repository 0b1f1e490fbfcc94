"""Every store leaves the same rows, and records the same events.

Each scenario uses the engine's verbs. The tables afterwards, the results of the verbs and all
events must match `golden/`, on each database: the one under test, and the one in memory that
`jobs.testing` uses. On PostgreSQL, all stores must. To accept an intended change, run

    OJS_WRITE_GOLDEN=1 pytest tests/contract

on one database; the others then show whether all do the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs import engine
from jobs.store.choice import chosen
from jobs.store.database import is_postgresql
from jobs.store.memory import Clock, Database

from .scenarios import SCENARIOS
from .world import World, kinds, written

GOLDEN = Path(__file__).parent / "golden"
OTHERS = [pytest.param(name, marks=pytest.mark.postgres) for name in ("citus", "portable")]
"""Stores that PostgreSQL is asked for by name."""
WRITES = bool(os.environ.get("OJS_WRITE_GOLDEN"))


def outcome(name: str) -> str:
    """Play the scenario and return the contents of its file."""
    world = World()
    SCENARIOS[name](world)
    return written(world.record()) + "\n"


@pytest.mark.django_db
@pytest.mark.parametrize("store", ["auto", *OTHERS])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_leaves_the_rows_and_events_of_its_file(name, store, settings):
    settings.OJS = {"STORE": store}
    usual = "postgresql" if is_postgresql() else "portable"
    assert chosen() == (usual if store == "auto" else store)

    found = outcome(name)

    path = GOLDEN / f"{name}.json"
    if WRITES:
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_leaves_the_same_in_memory(name):
    """And uses no other database: pytest-django would not allow it."""
    with Database(Clock()).using():
        engine.forget_queues()
        found = outcome(name)
        engine.forget_queues()

    assert found == (GOLDEN / f"{name}.json").read_text()


def test_every_file_is_one_of_a_scenario():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(SCENARIOS)


@pytest.mark.django_db
def test_what_is_whole_and_what_is_not_are_two_things():
    """Otherwise 1800 and 1800.0 would be equal, as they are in Python."""
    assert written({"limit_seconds": 1800}) != written({"limit_seconds": 1800.0})
    assert kinds({"steps": []}) == {}
