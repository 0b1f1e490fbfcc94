"""`make release-check`: the files of a release, installed and used as on a site.

It builds the source distribution and the wheel, checks what an index would show of them, installs
the wheel beside the oldest and the newest Python and Django that this machine has, and upgrades a
database of the previous release. Each step prints one line; the first that fails ends the run.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import postgres

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))
OLDEST_DJANGO, NEWEST_DJANGO = "django~=5.2.0", "django<7"
NEWEST_DJANGO_NEEDS = (3, 12)

SETTINGS = """

import dj_database_url

INSTALLED_APPS += ["rest_framework", "jobs", "workers", "mail"]
DATABASES = {"default": dj_database_url.config()}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
"""
HANDLERS = """
from workers.runtime import handler


@handler("email.send")
def send(context, to, template):
    return {"sent": to}
"""
ENQUEUE = """
from datetime import timedelta
import jobs
jobs.enqueue("email.send", ["a@example.com", "welcome"])
jobs.enqueue("email.send", ["b@example.com", "later"], scheduled_at=timedelta(seconds=0.1))
jobs.enqueue("email.send", ["c@example.com", "urgent"], priority=10, unique={"keys": ["args"]})
batch = [{"type": "email.send", "args": [f"{n}@example.com", "batch"]} for n in range(20)]
jobs.enqueue_many(batch)
"""
REPORT = """
from collections import Counter
from jobs.models import Job
print(dict(Counter(Job.objects.values_list("state", flat=True))))
"""
COMPLETED = 23


@dataclass
class Site:
    """A project of `startproject` in a separate environment."""

    folder: Path
    url: str

    @property
    def python(self) -> str:
        return str(self.folder / "venv" / "bin" / "python")

    def install(self, *what: str) -> None:
        run(self.python, "-m", "pip", "install", "--quiet", *what)

    def start(self) -> None:
        run(self.python, "-m", "django", "startproject", "shop", ".", cwd=self.folder)
        run(self.python, "manage.py", "startapp", "mail", cwd=self.folder)
        with (self.folder / "shop" / "settings.py").open("a") as settings:
            settings.write(SETTINGS)
        (self.folder / "mail" / "handlers.py").write_text(HANDLERS)

    def manage(self, *arguments: str, script: str = "") -> str:
        environment = clean() | {"DATABASE_URL": self.url}
        command = [self.python, "manage.py", *arguments]
        return run(*command, cwd=self.folder, env=environment, input=script)

    def versions(self) -> str:
        code = "import django, platform; print(platform.python_version(), django.__version__)"
        python, django = run(self.python, "-c", code).split()
        return f"Python {python}, Django {django}"


def clean() -> dict[str, str]:
    """Return the environment without this repository's variables and paths."""
    ours = ("OJS_", "DJANGO_", "DATABASE_URL", "PYTHON", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(ours)}


def run(*command: str, **options: object) -> str:
    options = {"env": clean(), "cwd": ROOT} | options
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return str(done.stdout)


def pythons() -> dict[tuple[int, int], str]:
    """Return the supported Pythons on this machine, by version."""
    names = [f"python{major}.{minor}" for major, minor in SUPPORTED]
    paths = [shutil.which(name) for name in names]
    paths += glob.glob(str(Path.home() / ".pyenv/versions/*/bin/python3"))
    found = {sys.version_info[:2]: sys.executable}
    for path in filter(None, paths):
        asked = [path, "-c", "import sys, ensurepip; print(*sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            major, minor = map(int, answer.stdout.split())
            if (major, minor) in SUPPORTED:
                found.setdefault((major, minor), path)
    return found


def build(source: Path, folder: Path) -> Path:
    """Build both files of a release from a checkout; return the wheel."""
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)),
        env=os.environ,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_files(folder: Path) -> None:
    files = [str(file) for file in sorted(folder.iterdir())]
    run(sys.executable, "-m", "twine", "check", "--strict", *files, env=os.environ)


def make_site(folder: Path, python: str, django: str, url: str, wheel: Path) -> Site:
    folder.mkdir()
    run(python, "-m", "venv", str(folder / "venv"))
    site = Site(folder, url)
    site.install(str(wheel), django, "dj-database-url")
    site.start()
    return site


def try_site(site: Site) -> None:
    site.manage("migrate", "--verbosity", "0")
    site.manage("makemigrations", "--check", "--dry-run")
    site.manage("check", "--fail-level", "WARNING", "--database", "default")
    site.manage("shell", script=ENQUEUE)
    expect_completed(site)


def expect_completed(site: Site) -> None:
    site.manage("runreaper", "--once")
    site.manage("runjobworker", "--burst")
    report = site.manage("shell", script=REPORT)
    if f"{{'completed': {COMPLETED}}}" not in report:
        sys.exit(f"{COMPLETED} jobs should have completed: {report}")


def try_upgrade(site: Site, wheel: Path) -> None:
    """The jobs that the previous release enqueued run under this one."""
    site.manage("migrate", "--verbosity", "0")
    site.manage("shell", script=ENQUEUE)
    site.install("--force-reinstall", "--no-deps", str(wheel))
    site.manage("migrate", "--verbosity", "0")
    expect_completed(site)


def databases(folder: Path, number: int) -> Iterator[tuple[str, str]]:
    yield "SQLite", f"sqlite:///{folder / f'{number}.sqlite3'}"
    yield "PostgreSQL", postgres.start(durable=False)


def previous_release() -> str:
    """Return the newest tag of a version, or an empty text."""
    tags = run("git", "tag", "--list", "v*", "--sort=-version:refname").split()
    return next((tag for tag in tags if re.fullmatch(r"v\d+(\.\d+)*", tag)), "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.add_argument(
        "--from",
        dest="previous",
        metavar="REVISION",
        default=previous_release(),
        help="the release to upgrade from (default: the newest tag of a version)",
    )
    arguments = parser.parse_args()
    found = pythons()
    oldest, newest = min(found), max(found)
    with tempfile.TemporaryDirectory(prefix="ojs-release-") as name:
        folder = Path(name)

        def step(title: str) -> None:
            print(f"{time.strftime('%H:%M:%S')}  {title}", flush=True)

        step("build the source distribution and the wheel")
        wheel = build(ROOT, folder / "dist")
        step(f"twine check: {', '.join(sorted(file.name for file in wheel.parent.iterdir()))}")
        check_files(wheel.parent)
        pairs = [(found[oldest], OLDEST_DJANGO)]
        if newest >= NEWEST_DJANGO_NEEDS:
            pairs.append((found[newest], NEWEST_DJANGO))
        else:
            step("skipped: there is no Python here that the newest Django supports")
        for number, (python, django) in enumerate(pairs):
            for kind, url in databases(folder, number):
                site = make_site(folder / f"{number}-{kind}", python, django, url, wheel)
                try_site(site)
                step(f"an empty site works: {site.versions()}, {kind}")
        if not arguments.previous:
            step("skipped: there is no previous release to upgrade from; name one with --from")
            return
        checkout = folder / "previous"
        run("git", "clone", "--quiet", "--shared", str(ROOT), str(checkout))
        run("git", "checkout", "--quiet", arguments.previous, cwd=checkout)
        old = build(checkout, folder / "old-dist")
        for kind, url in databases(folder, len(pairs)):
            place = folder / f"upgrade-{kind}"
            site = make_site(place, found[oldest], OLDEST_DJANGO, url, old)
            try_upgrade(site, wheel)
            step(f"an upgrade from {arguments.previous} works: {site.versions()}, {kind}")


if __name__ == "__main__":
    main()
