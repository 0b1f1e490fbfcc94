"""Both ways of writing rows leave the same rows, and tell the same of them.

Each scenario goes through the engine's verbs. What stands in the tables afterwards, what the verbs
answered and every event on the way must be what `golden/` says, on each database. A change that is
meant is written there with

    OJS_WRITE_GOLDEN=1 pytest tests/contract

on one database, and shows on the other whether both do the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .scenarios import SCENARIOS
from .world import World, kinds, written

GOLDEN = Path(__file__).parent / "golden"
WRITES = bool(os.environ.get("OJS_WRITE_GOLDEN"))


@pytest.mark.django_db
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_leaves_the_rows_and_events_of_its_file(name):
    world = World()
    SCENARIOS[name](world)
    found = written(world.record()) + "\n"

    path = GOLDEN / f"{name}.json"
    if WRITES:
        path.write_text(found)
    assert found == path.read_text()


def test_every_file_is_one_of_a_scenario():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(SCENARIOS)


@pytest.mark.django_db
def test_what_is_whole_and_what_is_not_are_two_things():
    """Otherwise 1800 and 1800.0 would be the same, as they are to Python."""
    assert written({"limit_seconds": 1800}) != written({"limit_seconds": 1800.0})
    assert kinds({"steps": []}) == {}
