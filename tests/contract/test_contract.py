"""Every store leaves the same rows, and records the same events.

Each scenario goes through the engine's verbs. What is in the tables afterwards, what the verbs
answered and every event on the way must be what `golden/` says, on each database: the one under
test, and the one in memory that `jobs.testing` uses. A change that is meant is written there with

    OJS_WRITE_GOLDEN=1 pytest tests/contract

on one database, and shows on the others whether all do the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs import engine
from jobs.store.memory import Clock, Database

from .scenarios import SCENARIOS
from .world import World, kinds, written

GOLDEN = Path(__file__).parent / "golden"
WRITES = bool(os.environ.get("OJS_WRITE_GOLDEN"))


def outcome(name: str) -> str:
    """Play the scenario and return what is to be in its file."""
    world = World()
    SCENARIOS[name](world)
    return written(world.record()) + "\n"


@pytest.mark.django_db
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_leaves_the_rows_and_events_of_its_file(name):
    found = outcome(name)

    path = GOLDEN / f"{name}.json"
    if WRITES:
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_leaves_the_same_in_memory(name):
    """And asks no other database: pytest-django would not let it."""
    with Database(Clock()).using():
        engine.forget_queues()
        found = outcome(name)
        engine.forget_queues()

    assert found == (GOLDEN / f"{name}.json").read_text()


def test_every_file_is_one_of_a_scenario():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(SCENARIOS)


@pytest.mark.django_db
def test_what_is_whole_and_what_is_not_are_two_things():
    """Otherwise 1800 and 1800.0 would be the same, as they are to Python."""
    assert written({"limit_seconds": 1800}) != written({"limit_seconds": 1800.0})
    assert kinds({"steps": []}) == {}
