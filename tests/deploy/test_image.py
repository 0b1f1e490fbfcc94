"""What the Dockerfile makes, without a container engine: its files, its environment, its commands.

The installation of the locked packages is a step of `make release-check`; here they are those of
this environment, which has the same versions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

import jobs
from ojs_project import health
from ojs_project.environment import secret
from ojs_project.health import NoAnswer, check
from tests import processes
from tests.once import once_is_enough
from tests.processes import eventually, running

from . import recipes

pytestmark = once_is_enough


@pytest.fixture
def image(tmp_path) -> Path:
    """A folder that was empty, with what the image copies; byte code and all."""
    folder = tmp_path / "image"
    folder.mkdir()
    recipes.copy_into(folder, sys.executable)
    return folder


def environment(folder: Path, database_url: str) -> dict[str, str]:
    """The image's own variables, those of compose.yaml, and none of this process."""
    tools = Path(sys.executable).parent
    key = folder.parent / "secret-key"
    key.write_text("a key for this test only\n")
    return recipes.image_environment() | {
        "PATH": f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "DATABASE_URL": database_url,
        "DJANGO_SECRET_KEY_FILE": str(key),
        "DJANGO_ALLOWED_HOSTS": "jobs.example.com",
        "DJANGO_DATA_DIR": str(folder.parent / "data"),
        "OJS_SERVER_HOST": "127.0.0.1",
        "OJS_SERVER_PORT": str(processes.free_port()),
    }


def contents(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.one_database
def test_the_commands_of_the_image_run_in_an_empty_folder(image, database_url, tmp_path):
    variables = environment(image, database_url)
    before = contents(image)

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=image, env=variables, capture_output=True, text=True, check=False
        )

    migrated = run(["python", "manage.py", "migrate"])
    assert migrated.returncode == 0, migrated.stderr
    assert run(recipes.health_command()).returncode == 1
    alive = str(tmp_path / "alive")
    worker = recipes.services()["worker"]["command"]
    worker = [word.replace("/tmp/alive", alive) for word in worker]
    job = jobs.enqueue("demo.fast", [1])
    with (
        running(recipes.image_command(), tmp_path / "server.log", variables, image) as server,
        running(worker, tmp_path / "worker.log", variables, image) as at_work,
    ):
        eventually(lambda: run(recipes.health_command()).returncode == 0, lambda: server.output)
        eventually(lambda: job.refresh().state == "completed", lambda: at_work.output)
        check({}, Path(alive))
        assert server.terminate() == 0, server.output
        assert at_work.terminate() == 0, at_work.output

    assert contents(image) == before


def test_a_process_that_does_not_touch_its_file_is_not_healthy(tmp_path):
    alive = tmp_path / "alive"
    alive.touch()
    check({}, alive)

    os.utime(alive, (0, 0))

    with pytest.raises(NoAnswer, match="was touched"):
        check({}, alive)


def test_a_server_that_is_not_there_is_not_healthy(tmp_path):
    with pytest.raises(NoAnswer):
        check({"OJS_SERVER_PORT": str(processes.free_port())}, tmp_path / "alive")


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("fd00::7", "[fd00::7]"),
        ("localhost", "localhost"),
    ],
)
def test_the_server_is_asked_where_it_listens(tmp_path, monkeypatch, host, asked):
    urls = []
    monkeypatch.setattr(health, "health", lambda url, host: urls.append(url))

    check({"OJS_SERVER_HOST": host, "OJS_SERVER_PORT": "8100"}, tmp_path / "alive")

    assert urls == [f"http://{asked}:8100"]


def test_a_secret_may_be_the_content_of_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("from a file\n")

    assert secret({"KEY_FILE": str(file)}, "KEY") == "from a file"
    assert secret({"KEY": "itself", "KEY_FILE": ""}, "KEY") == "itself"


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"KEY": "itself", "KEY_FILE": "/run/secrets/key"}, "Set KEY or KEY_FILE, not both."),
        ({"KEY_FILE": "/nowhere/key"}, "KEY_FILE: .*No such file"),
    ],
)
def test_a_secret_that_cannot_be_read_is_refused(variables, problem):
    with pytest.raises(ImproperlyConfigured, match=problem):
        secret(variables, "KEY")
