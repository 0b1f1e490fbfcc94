"""The recipes of docs/worker.md: systemd takes the unit, Kubernetes' probes answer."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from tests.processes import ROOT
from tests.workers.site import Shop, ends_with, worker_becomes

GUIDE = (ROOT / "docs" / "worker.md").read_text()

pytestmark = pytest.mark.slow


def recipe(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE, re.S)
    assert found is not None
    return found[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_nothing_to_say_against_the_unit(tmp_path):
    unit = tmp_path / "shop-worker.service"
    # Its program is not here; any that is will do.
    unit.write_text(
        recipe("ini").replace("/srv/shop/.venv/bin/python", "/bin/true").replace("/srv/shop", "/")
    )

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    about_it = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, about_it) == (0, [])


def commands(pod: str, key: str) -> list[str]:
    """The command lists of the recipe under `key`."""
    found = re.search(rf"{key}:.*?command: (\[.*?\])\n", pod, re.S)
    assert found is not None
    return re.findall(r'"([^"]*)"', found[1])


def test_what_kubernetes_would_run_does_what_it_says(tmp_path, database_url):
    pod = recipe("yaml")
    program = re.search(r'command: \["python", "manage.py", (.*?)\]', pod)
    assert program is not None
    (name, *arguments) = re.findall(r'"([^"]*)"', program[1])
    assert name == "runjobworker"
    shop: Any = Shop(tmp_path, database_url)
    with shop.worker(*arguments) as started:

        def run(key: str) -> int:
            # In its container the worker is process 1.
            shell = [
                re.sub(r"\b1\b", str(started.process.pid), word) for word in commands(pod, key)
            ]
            shell[-1] = shell[-1].replace("sleep 3", "true")
            return subprocess.run(shell, check=False, capture_output=True).returncode

        assert run("livenessProbe") == 0
        assert run("preStop") == 0
        worker_becomes("quiet")
        started.process.terminate()
        ends_with(started)
        assert run("livenessProbe") != 0
