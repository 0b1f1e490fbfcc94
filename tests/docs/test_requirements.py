"""Every test that a table of requirements names is there, and the manifest names each extension."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.http import extensions

from .pages import ROOT

PAGES = sorted((ROOT / "docs" / "extensions").glob("*.md"))
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
URN = re.compile(r"`(urn:ojs:ext:[\w:-]+)`")


def pages() -> list[object]:
    return [pytest.param(page, id=page.stem) for page in PAGES]


def source_of(name: str) -> str:
    """The tests in the files of this name, which may leave out folders that are plain."""
    files = [path for path in (ROOT / "tests").rglob(Path(name).name) if path.match(name)]
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("page", pages())
def test_every_test_that_shows_a_requirement_is_there(page):
    named = NAMED.findall(page.read_text())

    assert named
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in source_of(file)]
    assert missing == []


@pytest.mark.parametrize("page", pages())
def test_the_manifest_names_the_extension_of_each_page(page):
    introduction, _, _ = page.read_text().partition("\n## ")
    sometimes = {name for name in vars(extensions).values() if str(name).startswith("urn:ojs:ext:")}
    claimed = {*extensions.EXTENSIONS, *sometimes}
    named = set(URN.findall(introduction))

    assert named <= claimed
    if page.stem == "index":
        assert named == claimed
