"""Recipes of docs/worker.md: systemd accepts the unit, Kubernetes' probes work."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from jobs.store import wakeup
from tests.database import connection
from tests.processes import ROOT, eventually
from tests.workers.site import Shop, ends_with, tell, worker_becomes
from workers.models import Worker

GUIDE = (ROOT / "docs" / "worker.md").read_text()

pytestmark = pytest.mark.slow


def recipe(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE, re.S)
    assert found is not None
    return found[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_nothing_to_say_against_the_unit(tmp_path):
    unit = tmp_path / "shop-worker.service"
    # Its program is not installed here; any existing one will do.
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


def command(pod: str, key: str) -> list[str]:
    """The command list of the recipe under `key`."""
    found = re.search(rf"{key}.*?command: (\[.*?\])\n", pod, re.S)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return words


def test_what_kubernetes_would_run_does_what_it_says(tmp_path, database_url):
    pod = recipe("yaml")
    alive = tmp_path / "alive"
    python, manage, name, *arguments = command(pod, "image: shop")
    assert (python, manage, name) == ("python", "manage.py", "runjobworker")
    shop: Any = Shop(tmp_path, database_url)
    with shop.worker(*[word.replace("/tmp/alive", str(alive)) for word in arguments]) as started:

        def run(key: str) -> int:
            *shell, script = command(pod, key)
            # In its container the worker is process 1.
            script = script.replace("kill -TSTP 1", f"kill -TSTP {started.process.pid}")
            script = script.replace("sleep 3", "true").replace("/tmp/alive", str(alive))
            return subprocess.run([*shell, script], check=False, capture_output=True).returncode

        def a_minute_passes() -> None:
            os.utime(alive, (0, 0))

        assert run("livenessProbe") == 0
        eventually(lambda: run("readinessProbe") == 0)
        assert run("preStop") == 0
        worker_becomes("quiet")
        eventually(lambda: run("readinessProbe") != 0)
        a_minute_passes()
        eventually(lambda: run("livenessProbe") == 0)
        tell(started, signal.SIGSTOP)
        eventually(lambda: is_stopped(started.process.pid))
        a_minute_passes()
        assert run("livenessProbe") != 0
        tell(started, signal.SIGCONT)
        eventually(lambda: run("livenessProbe") == 0)
        started.process.terminate()
        ends_with(started)


def is_stopped(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def test_the_guide_names_tests_that_exist():
    table = GUIDE.partition("## What tests what")[2].partition("\n\n| rule")[2]
    files = [*Path(__file__).parent.glob("test_runtime*.py")]
    names = re.findall(r"def (test_\w+)", "".join(file.read_text() for file in files))
    quoted = re.findall(r"`(?:\w+: )?([a-z_…]*[_…][a-z_…]*)`", table)
    patterns = ["test_.*?" + name.strip("…").replace("…", ".*") + ".*" for name in quoted]

    assert len(quoted) > 20
    assert [p for p in patterns if not any(re.fullmatch(p, name) for name in names)] == []


@pytest.mark.django_db(transaction=True)
def test_a_program_embeds_a_worker_as_the_page_shows(monkeypatch):
    if connection.vendor == "postgresql":
        monkeypatch.setattr(wakeup, "LINGER", 0)  # the thread that listens ends with the others
    (code,) = re.findall(r"```python\n(import threading.*?)```", GUIDE, re.S)
    before, _, after = code.partition("\n...\n")
    threads = set(threading.enumerate())
    names: dict[str, Any] = {}

    exec(before, names)
    try:
        eventually(lambda: Worker.objects.live().exists())
    finally:
        exec(after, names)
        # Some are enumerated before they run: these cannot be joined.
        eventually(lambda: {t.name for t in {*threading.enumerate()} - threads} <= {"ojs-watchdog"})

    assert not Worker.objects.live().exists()
