"""Make the pictures and the table of tasks in docs/operators.md anew (`make pictures`).

    python -m tests.pictures                 all of them
    python -m tests.pictures dashboard jobs  some, by the names of their files
    python -m tests.pictures --table         the table alone

They show the large scene of `tests.scenes.large` in headless Chromium. Look at each before it is
committed.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "operators.md"
FOLDER = ROOT / "docs" / "pictures"
TABLE = re.compile(r"^\| task \|.*?(?=\n\n)", re.MULTILINE | re.DOTALL)
CHOSEN = "OJS_TEST_PICTURES_OF"
"""Names of pictures, separated by commas; empty for all."""


def write_table() -> None:
    """Write the table of an operator's tasks into the guide."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from tests.browser.tasks import table

    text = GUIDE.read_text()
    new, count = TABLE.subn(lambda _: table(), text)
    assert count == 1, f"{GUIDE} has {count} tables of tasks"
    GUIDE.write_text(new)


def main(names: list[str]) -> int:
    os.environ["OJS_TEST_DATABASE"] = "sqlite"
    if "--table" in names:
        write_table()
        return 0
    os.environ[CHOSEN] = ",".join(names)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "tests/browser/pictures.py"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
