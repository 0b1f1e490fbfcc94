"""Every test that a table of requirements names is there, and the index has every extension."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs.http import extensions
from tests.once import once_is_enough

from .pages import ROOT

pytestmark = once_is_enough

PAGES = sorted((ROOT / "docs" / "extensions").glob("*.md"))
NAMED = re.compile(r"`(?:([\w/]+\.py)::)?(test_\w+)`")
URN = re.compile(r"`(urn:ojs:ext:[\w:-]+)`")
SOURCES = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


def is_there(file: str, test: str) -> bool:
    """Whether a file of this name has the test; without a name, whether any has."""
    return any(
        f"def {test}(" in text
        for path, text in SOURCES.items()
        if not file or path.match(str(Path(file)))
    )


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_every_test_that_shows_a_requirement_is_there(page):
    named = NAMED.findall(page.read_text())

    assert named
    assert [f"{file}::{test}" for file, test in named if not is_there(file, test)] == []


def test_the_index_has_every_extension_that_the_manifest_may_name():
    index = (ROOT / "docs" / "extensions" / "index.md").read_text()
    sometimes = {name for name in vars(extensions).values() if str(name).startswith("urn:ojs:ext:")}

    table, _, _ = index.partition("\n## ")
    assert set(URN.findall(table)) == {*extensions.EXTENSIONS, *sometimes}
