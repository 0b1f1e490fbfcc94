"""A service that ends is started again; one that will not start is reported with its own words."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ojs_project import supervisor
from ojs_project.stopping import Stopping
from ojs_project.supervisor import MOST_FAILURES, Service, ServiceFailed, Supervisor
from tests.processes import eventually


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of one service, which ends as soon as it has said why."""
    says_why = "import sys; sys.exit('No certificate.')"
    command = [sys.executable, "-I", "-S", "-c", says_why]
    service = Service("server", command, tmp_path / "server.log", dict(os.environ))
    found = Supervisor([service], Stopping())
    found.start()
    yield found
    found.stop(print)


def revive_at_its_end(found: Supervisor, *, starting: bool) -> str:
    """Wait until the service has ended, and return what is said about it."""
    said: list[str] = []

    def has_ended() -> bool:
        said.extend(found.revive(starting=starting))
        return bool(said)

    eventually(has_ended)
    return said[0]


def revive_until_it_fails(found: Supervisor, *, starting: bool) -> str:
    for _ in range(MOST_FAILURES - 1):
        assert "ended with exit code 1; started again" in revive_at_its_end(
            found, starting=starting
        )
    with pytest.raises(ServiceFailed) as failed:
        revive_at_its_end(found, starting=starting)
    return str(failed.value)


def test_a_service_that_keeps_dying_is_given_up(dying):
    said = revive_until_it_fails(dying, starting=False)

    assert f"ended with exit code 1, {MOST_FAILURES} times in a row" in said
    assert "No certificate." in said


def test_a_service_that_is_slow_to_fail_has_not_started(dying, monkeypatch):
    monkeypatch.setattr(supervisor, "TOO_SOON", 0.0)

    assert "No certificate." in revive_until_it_fails(dying, starting=True)


def test_a_service_that_dies_now_and_then_is_always_started_again(dying, monkeypatch):
    monkeypatch.setattr(supervisor, "TOO_SOON", 0.0)

    for _ in range(2 * MOST_FAILURES):
        assert "started again as process" in revive_at_its_end(dying, starting=False)
