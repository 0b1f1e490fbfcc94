"""`make test-sites`: every condition on the oldest and the newest Django, each with its packages.

The databases are SQLite files; OJS_TEST_DATABASE=postgres takes PostgreSQL instead. Each step
prints one line. A condition that fails does not end the run; the exit code says whether one did.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENTS = ROOT / ".venv-sites"
DJANGOS = {"5.2": "django~=5.2.0", "newest": "django<7"}


def environment_of(version: str, packages: list[str], wheel: Path) -> str:
    """Make or renew an environment with a version of Django; return its Python."""
    from tests.release import NEWEST_DJANGO_NEEDS, pythons, run

    found = pythons()
    first = max(found) if version == "newest" else min(found)
    if version == "newest" and first < NEWEST_DJANGO_NEEDS:
        return ""
    folder = ENVIRONMENTS / version
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        run(found[first], "-m", "venv", str(folder))
    constraints = folder / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    constraints.write_text(
        "".join(line for line in pinned if not line.lower().startswith("django=="))
    )
    install = [python, "-m", "pip", "install", "--quiet", "--upgrade", "-c", str(constraints)]
    run(*install, str(wheel), "granian", "websockets", DJANGOS[version], *packages)
    run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))
    return python


def versions(python: str, packages: list[str]) -> str:
    code = (
        "import importlib.metadata as m, platform, sys;"
        "print('Python', platform.python_version(), *(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    asked = [python, "-c", code, "django", *packages]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def databases(names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    import dj_database_url

    from tests.conftest import url_of_test_database
    from tests.database import connection
    from tests.processes import empty_database

    with ExitStack() as stack:
        if connection.vendor == "sqlite":
            yield {}
            return
        url = url_of_test_database()
        made = {name: stack.enter_context(empty_database(url)) for name in names}
        yield {name: dj_database_url.parse(url) for name, url in made.items()}


def main() -> int:
    from .conditions import CONDITIONS
    from .story import Site, live_through

    parser = argparse.ArgumentParser(prog="make test-sites", description=__doc__)
    names = [condition.name for condition in CONDITIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CONDITION")
    parser.add_argument("--django", nargs="+", choices=DJANGOS, default=list(DJANGOS))
    arguments = parser.parse_args()
    packages = sorted({package for one in CONDITIONS for package in one.packages})
    failed = []

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    from tests.release import build

    built = tempfile.TemporaryDirectory(prefix="ojs-sites-wheel-")
    wheel = build(ROOT, Path(built.name))
    for version in arguments.django:
        python = environment_of(version, packages, wheel)
        if not python:
            say("skipped: there is no Python here that the newest Django supports")
            continue
        say(versions(python, packages))
        for condition in CONDITIONS:
            if condition.name not in arguments.only:
                continue
            with (
                tempfile.TemporaryDirectory(prefix=f"site-{condition.name}-") as folder,
                databases(condition.databases) as made,
            ):
                try:
                    live_through(Site(condition, Path(folder), python, made))
                    say(f"{condition.name}: well")
                except AssertionError as problem:
                    say(f"{condition.name}: {problem}")
                    failed.append(f"{condition.name} on {version}")
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    sys.exit(main())
