"""A site's top-level package with the name of one of the project's is reported, with a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.once import once_is_enough
from tests.processes import PATIENCE, ROOT

SETTINGS = """
SECRET_KEY = "for-tests-only"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", {apps}]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3",
    "OPTIONS": {{"transaction_mode": "IMMEDIATE"}}}}}}
USE_TZ = True
"""
APP = """
from django.apps import AppConfig

class Own(AppConfig):
    name = {name!r}
    label = {label!r}
"""

pytestmark = [once_is_enough, pytest.mark.slow]


@pytest.fixture
def migrate(tmp_path):
    """Migrate a site with an app of its own: in a package by that name."""

    def run(
        package: str, *, label: str, ours: Sequence[str] = ("jobs", "workers")
    ) -> subprocess.CompletedProcess[str]:
        folder = tmp_path.joinpath(*package.split("."))
        folder.mkdir(parents=True)
        for depth in range(1, package.count(".") + 2):
            tmp_path.joinpath(*package.split(".")[:depth], "__init__.py").touch()
        (folder / "apps.py").write_text(APP.format(name=package, label=label))
        apps = dict.fromkeys([package, *ours])
        (tmp_path / "site_settings.py").write_text(SETTINGS.format(apps=", ".join(map(repr, apps))))
        inherited = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("OJS_", "DJANGO_", "DATABASE_URL"))
        }
        return subprocess.run(
            [sys.executable, "-m", "django", "migrate"],
            cwd=tmp_path,
            # As with an installed package: the site's own folder comes first.
            env=inherited
            | {
                "DJANGO_SETTINGS_MODULE": "site_settings",
                "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


@pytest.mark.parametrize("name", ["jobs", "workers"])
def test_a_package_in_the_way_is_named_with_the_way_out(migrate, tmp_path, name):
    refused = migrate(name, label=name)

    assert refused.returncode != 0
    last = refused.stderr.strip().splitlines()[-1]
    assert last.startswith("django.core.exceptions.ImproperlyConfigured: ")
    assert str(tmp_path / name) in last
    assert f"'mysite.{name}'" in last and f"label = '{name}'" in last
    assert not (tmp_path / "site.sqlite3").exists()


@pytest.mark.parametrize("name", ["jobs", "workers"])
def test_the_way_out_works(migrate, name):
    migrated = migrate(f"mysite.{name}", label=name)

    assert migrated.returncode == 0, migrated.stderr
    assert "ojs_jobs.0001" in migrated.stdout and "ojs_workers.0001" in migrated.stdout


def test_workers_without_jobs_says_what_is_missing(migrate):
    refused = migrate("mysite.orders", label="orders", ours=["workers"])

    assert "The app 'workers' needs the app 'jobs'" in refused.stderr.splitlines()[-1]
