"""The deployment of docs/operators.md, run unchanged against a live fleet."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.models import OperatorAction
from tests.processes import ROOT, eventually
from tests.workers.site import Shop
from workers.models import Worker

GUIDE = (ROOT / "docs" / "operators.md").read_text()

pytestmark = pytest.mark.slow

# The site's own two commands, which the recipe leaves to its reader.
START = """#!/bin/sh
python manage.py runjobworker --labels "$2" --processes 2 > new.log 2>&1 &
echo $! > new.pid
until [ "$(grep -c "jobs at once, of" new.log)" -eq 2 ]; do sleep 0.1; done
"""
REMOVE = """#!/bin/sh
echo "$@" > removed
"""


def script() -> str:
    """The commands of the recipe: the items of its list, with continuation lines."""
    recipe = re.search(r"```yaml\ndeploy:\n  script:\n(.*?)```", GUIDE, re.S)
    assert recipe is not None
    commands = re.sub(r"\n {8,}", " ", recipe[1])
    commands = re.sub(r"^    - ", "", commands, flags=re.M)
    # A command that does not end here need not be awaited for half an hour.
    return re.sub(r" +# .*", "", commands).replace("--timeout 1800", "--timeout 60")


def site(folder: Path) -> None:
    manage = f"import runpy, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    manage += f"runpy.run_path({str(ROOT / 'manage.py')!r}, run_name='__main__')\n"
    for name, text in (("manage.py", manage), ("start-workers", START), ("remove-workers", REMOVE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def run(folder: Path, shop: Any, commands: str, **variables: str) -> Any:
    tools = str(Path(sys.executable).parent)
    environ = shop.environment()
    environ |= variables | {"PATH": f"{tools}:{environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-euo", "pipefail"], input=commands, cwd=folder, env=environ,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_release_takes_the_place_of_another_without_losing_a_job(tmp_path, database_url):
    site(tmp_path)
    shop = Shop(tmp_path, database_url)
    with shop.worker("--labels", "release-41", "--processes", "2") as old:
        eventually(lambda: Worker.objects.live().count() == 2)
        try:
            done = run(tmp_path, shop, script(), OLD="41", NEW="42")
        finally:
            subprocess.run(["sh", "-c", "kill $(cat new.pid)"], cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        assert old.wait() == 0
        # Otherwise they would still run while the tables are emptied for the next test.
        eventually(lambda: not Worker.objects.live().exists())

    told = json.loads((tmp_path / "drain.json").read_text())
    assert (told["state"], told["finished"]) == ("completed", 2)
    assert (tmp_path / "removed").read_text() == "--label release-41\n"
    assert OperatorAction.objects.get(verb="drain_fleet").reason == "Release 42"


def test_a_first_release_has_nothing_to_replace(tmp_path, database_url):
    command = re.search(r"^python manage.py fleet drain .* -eq 4 \]$", GUIDE, re.M)
    assert command is not None
    site(tmp_path)

    done = run(tmp_path, Shop(tmp_path, database_url), command[0], OLD="41")

    assert done.returncode == 0, done.stderr
    assert "No live worker matches" in done.stderr
