"""`make install` and an image install exactly what was tested, file by file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.once import once_is_enough

pytestmark = once_is_enough


ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = {
    "requirements.lock": ["dev"],
    "requirements-server.lock": [
        *("server", "q2", "metrics", "otlp", "pool", "rota", "schemas", "tasks"),
    ],
    "requirements-docs.lock": ["docs"],
}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (Requirement(line) for line in lines if not line.startswith("#"))
    return {canonicalize_name(pin.name): str(pin.specifier) for pin in pins}


def locked(name: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Each requirement of a lock, and the hashes of its files."""
    text = "\n".join(
        line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")
    )
    found = {}
    for entry in re.split(r"\n(?=\S)", text.replace("\\\n", " ").strip()):
        pin, *hashes = entry.split(" --hash=")
        requirement = Requirement(pin.strip())
        found[canonicalize_name(requirement.name)] = requirement, [one.strip() for one in hashes]
    return found


def wanted(extras: list[str]) -> set[Requirement]:
    """The project's requirements with these extras, which may name others."""
    found = {Requirement(text) for text in PROJECT["dependencies"]}
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == PROJECT["name"]:
                found |= wanted(sorted(requirement.extras))
            else:
                found.add(requirement)
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_file_has_a_hash(name):
    for requirement, hashes in locked(name).values():
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes)


@pytest.mark.parametrize("name", LOCKS)
def test_the_versions_are_those_of_the_constraints(name):
    known = constraints()
    for pinned, (requirement, _) in locked(name).items():
        # Requirements of other platforms only were not installed when constraints were written.
        if requirement.marker is None or pinned in known:
            assert str(requirement.specifier) == known.get(pinned), "Run `make lock`."


@pytest.mark.parametrize("name", LOCKS)
def test_it_has_what_the_project_asks_for(name):
    pins = locked(name)
    for requirement in wanted(LOCKS[name]):
        pinned, _ = pins[canonicalize_name(requirement.name)]
        (version,) = (one.version for one in pinned.specifier)
        assert requirement.specifier.contains(version), f"{requirement}: run `make lock`."


def test_everything_of_the_constraints_is_locked():
    assert constraints().keys() <= set().union(*(locked(name) for name in LOCKS))
