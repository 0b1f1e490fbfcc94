"""The wheel, installed into an empty folder and used by a site without the repository."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.database import connection
from tests.docs.pages import Block, blocks
from tests.once import once_is_enough
from tests.processes import PATIENCE
from workers.openapi.document import current

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow

HOST_SITE = ROOT / "tests" / "host_site"
BARE = ["rest_framework", "jobs", "workers"]
WITH_ADMIN = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    *BARE,
]

SETTINGS = """
SECRET_KEY = "for-tests-only"
INSTALLED_APPS = {apps!r}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "site_urls"
TEMPLATES = [{{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {{"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]}},
}}]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}}}}
USE_TZ = True
"""

URLS = """
from django.urls import include, path

urlpatterns = [path("", include("workers.urls"))]
"""

LOAD_TEMPLATES = """
import sys
import django
django.setup()
from django.template.loader import get_template
for name in sys.argv[1:]:
    print(get_template(name).origin.name)
"""

READ_DOCUMENT = """
import django
django.setup()
from django.test import RequestFactory
from django.urls import resolve
request = RequestFactory().get("/ojs/v1/openapi.json")
view, arguments, named = resolve(request.path)
print(view(request).content.decode())
"""


@dataclass
class Site:
    """A site in a separate folder; `packages` is where the wheel was installed."""

    folder: Path
    packages: Path

    def run(self, *arguments: str, apps: list[str] = BARE, settings: str = "site_settings") -> str:
        """Run Python in the site; return its output."""
        (self.folder / "site_settings.py").write_text(SETTINGS.format(apps=apps))
        (self.folder / "site_urls.py").write_text(URLS)
        environment = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("OJS_", "DJANGO_", "DATABASE_URL"))
        }
        # Before site-packages, where an editable install of this repository would come first.
        environment["PYTHONPATH"] = os.pathsep.join([str(self.packages), str(self.folder)])
        environment["DJANGO_SETTINGS_MODULE"] = settings
        return run(*arguments, cwd=self.folder, env=environment)


def run(*arguments: str, **options) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        **options,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    packages = folder / "packages"
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(packages), str(wheel))
    return Site(folder, packages)


@once_is_enough
def test_the_wheel_holds_both_apps_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    code = [name for name in names if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in code} == {"jobs", "workers"}
    assert {"jobs/py.typed", "workers/py.typed"} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@once_is_enough
def test_the_wheel_holds_every_template(wheel):
    shipped = {
        name.removeprefix("jobs/templates/")
        for name in zipfile.ZipFile(wheel).namelist()
        if name.startswith("jobs/templates/")
    }
    templates = ROOT / "templates"

    assert shipped == {
        file.relative_to(templates).as_posix() for file in templates.rglob("*") if file.is_file()
    }


@once_is_enough
def test_the_wheel_holds_every_translation(wheel):
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if "/locale/" in name}

    assert shipped == {
        f"{app}/locale/{language}/LC_MESSAGES/django.{kind}"
        for app in ("jobs", "workers")
        for language in ("de", "es")
        for kind in ("po", "mo")
    }


@once_is_enough
def test_the_wheel_holds_the_openapi_document(wheel):
    with zipfile.ZipFile(wheel) as content:
        held = json.loads(content.read("workers/openapi/openapi.json"))

    assert held == current()


@once_is_enough
def test_a_site_serves_the_openapi_document(site):
    served = json.loads(site.run("-c", READ_DOCUMENT))
    site.run("-m", "django", "openapi", "openapi.json")

    assert json.loads((site.folder / "openapi.json").read_text()) == current()
    assert served["paths"] == current()["paths"]


@once_is_enough
def test_the_apps_come_from_the_wheel(site):
    output = site.run("-c", "import jobs, workers; print(jobs.__file__, workers.__file__)")

    assert output.split() == [
        str(site.packages / app / "__init__.py") for app in ("jobs", "workers")
    ]


@once_is_enough
@pytest.mark.parametrize("apps", [BARE, WITH_ADMIN], ids=["bare", "with_admin"])
def test_a_site_checks_and_migrates(site, apps):
    site.run("-m", "django", "check", apps=apps)
    (site.folder / "site.sqlite3").unlink(missing_ok=True)

    site.run("-m", "django", "migrate", apps=apps)
    site.run("-m", "django", "makemigrations", "--check", "--dry-run", apps=apps)


@once_is_enough
def test_the_templates_are_found_without_the_repository(site):
    folder = site.packages / "jobs" / "templates"
    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*.html"))]
    if not names:
        pytest.skip("there are no templates")

    origins = site.run("-c", LOAD_TEMPLATES, *names, apps=WITH_ADMIN).split("\n")

    assert origins[:-1] == [str(folder / name) for name in names]


@pytest.fixture
def host_databases(db, monkeypatch) -> Iterator[None]:
    """On PostgreSQL, two empty databases for the host site; on SQLite it has files."""
    if connection.vendor == "sqlite":
        yield
        return
    here = connection.settings_dict
    names = {alias: f"host_{alias}_{secrets.token_hex(4)}" for alias in ("default", "queue")}
    like_here = {
        key: here[key] for key in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    }
    databases = {alias: like_here | {"NAME": name} for alias, name in names.items()}
    monkeypatch.setenv("SHOP_DATABASES", json.dumps(databases))
    with connection._nodb_cursor() as cursor:
        for name in names.values():
            cursor.execute(f'CREATE DATABASE "{name}"')
    yield
    with connection._nodb_cursor() as cursor:
        for name in names.values():
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_a_host_site_with_names_of_its_own_gets_on_with_both_apps(site, tmp_path, host_databases):
    """Its apps `shop.jobs` and `shop.workers`, its admin, REST framework policies and router."""
    host = Site(tmp_path / "host", site.packages)
    shutil.copytree(HOST_SITE, host.folder, ignore=shutil.ignore_patterns("__pycache__"))

    def manage(*arguments: str) -> str:
        return host.run("-m", "django", *arguments, settings="host_settings")

    checks = manage(
        "check", "--fail-level", "DEBUG", "--database", "default", "--database", "queue"
    )
    assert checks == "System check identified no issues (0 silenced).\n"
    manage("migrate", "--verbosity", "0")
    manage("migrate", "--verbosity", "0", "--database", "queue")
    assert manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"
    host.run("hire.py", settings="host_settings")
    manage("runjobworker", "--burst")
    manage("runreaper", "--once")

    found = json.loads(host.run("look.py", settings="host_settings").splitlines()[-1])

    assert found["hired"] == [["Clerk", "Ada"], ["Cook", "Grace"]]
    assert found["jobs"] == [["completed", number] for number in (0, 0, 1, 1)]
    assert len(found["pages"]) > 8
    assert {url: said for url, said in found["pages"].items() if said != [200, True]} == {}


@once_is_enough
def test_django_in_five_minutes_is_that_when_pasted(site, tmp_path):
    """All but the installation, in an empty folder, with the apps of the wheel."""
    readme = ROOT / "README.md"
    (pasted,) = (one.text for one in blocks(readme) if one.text.startswith("python3 -m venv"))
    _, _, session = pasted.partition("pip install django-ojs\n")
    assert session

    done = paste(session + "\npython -c 'import jobs; print(jobs.__file__)'\n", site, tmp_path)

    assert done.returncode == 0, done.stderr
    *_, last, where = done.stdout.splitlines()
    assert Path(where).is_relative_to(site.packages)
    assert last == "email.send completed {'sent': 'you@example.com'}"
    assert f"The last line says `{last}`" in readme.read_text()
    assert "to you@example.com" in done.stderr, "the worker is heard where nothing is configured"


@once_is_enough
def test_the_tutorial_works_as_it_stands(site, tmp_path):
    """All but the installation, in an empty folder, with the apps of the wheel."""
    tutorial = ROOT / "docs" / "tutorial.md"
    _, installation, *steps = ["", *(block for block in blocks(tutorial) if block.is_run)]
    assert installation.text.splitlines()[1] == "pip install django-ojs"
    script = "\n".join([installation.text.splitlines()[2], *map(as_shell, steps)])

    done = paste(
        f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nexec 2>&1\n{script}\nwait\n",
        site,
        tmp_path,
    )

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].strip() == "200", done.stdout
    assert "Traceback" not in (tmp_path / "old.log").read_text()


def paste(script: str, site: Site, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run commands in a folder, with this environment's `python` and the apps of the wheel."""
    tools = Path(sys.executable).parent
    environment = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(site.packages),
        "HOME": str(folder),
    }
    # With job control, as in a terminal: `kill %1`.
    return subprocess.run(
        ["bash", "-meuo", "pipefail"],
        input=script,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 5,
        check=False,
    )


def as_shell(block: Block) -> str:
    """A block as a command; Python goes into the file that its first line names."""
    if block.language == "bash":
        return block.text
    assert block.language == "python"
    title, _, rest = block.text.partition("\n")
    file, _, where = title.removeprefix("# ").partition(", ")
    redirect = ">>" if where == "at the end" else ">"
    return f"cat {redirect} {file} <<'END-OF-BLOCK'\n{rest}END-OF-BLOCK\n"
