"""The public Python API matches `docs/api.md`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "api.md").read_text()
ROWS = re.findall(r"^\| (`(?:jobs|workers)\..*?) \|", PAGE, re.M)
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([\w.]+)`", row)})


def find(name: str) -> object:
    """Return the object that a dotted name refers to: a module, or a name in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", NAMES)
def test_a_documented_name_can_be_imported(name):
    assert find(name) is not None


def test_the_page_lists_everything_the_packages_export():
    import jobs
    import workers.runtime

    exported = {f"jobs.{name}" for name in jobs.__all__}
    exported |= {f"workers.runtime.{name}" for name in workers.runtime.__all__}

    assert exported <= set(NAMES)
