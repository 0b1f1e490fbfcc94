"""Servers import everything before the first request: their files may be replaced later."""

from __future__ import annotations

import sys

import pytest

from tests import processes
from tests.once import once_is_enough

pytestmark = [once_is_enough, pytest.mark.slow]

SCRIPT = """
import sys

from ojs_project.{interface} import application

class Replaced:
    def find_spec(self, name, path=None, target=None):
        # A thread looks for these, whose schedules it registers.
        if name.endswith((".handlers", ".tasks")):
            return None
        if name.partition(".")[0] in ("jobs", "workers", "ojs_project"):
            raise ImportError(f"{{name}} has been replaced")

sys.meta_path.insert(0, Replaced())

from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client

operator = Client(headers={{"Host": "localhost"}})
operator.force_login(User.objects.create_superuser("loading-{interface}"))
paths = ["/admin/", "/admin/login/", "/ojs/v1/openapi.json", "/ojs/v1/docs", "/ojs/manifest"]
paths += ["/ojs/v1/jobs", "/ojs/v1/admin/stats", "/health", "/ready"]
names = [model._meta for model in site._registry]
paths += [f"/admin/{{name.app_label}}/{{name.model_name}}/" for name in names]
for path in paths:
    print(path, operator.get(path).status_code)
job = {{"type": "report", "args": []}}
print(operator.post("/ojs/v1/jobs", job, content_type="application/json").status_code)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """That of the stand-alone project, with a database of its own: the admin needs its tables."""
    folder = tmp_path_factory.mktemp("loading")
    options = processes.environment(f"sqlite:///{folder / 'ojs.sqlite3'}", ALLOW_ANONYMOUS=1)
    options["DJANGO_SETTINGS_MODULE"] = "ojs_project.settings"
    with processes.manage_to(folder / "migrate.log", options, "migrate") as migrating:
        assert migrating.wait() == 0, migrating.output
    return options


@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_no_request_imports_anything_of_the_project(tmp_path, environment, interface):
    command = [sys.executable, "-c", SCRIPT.format(interface=interface)]
    with processes.running(command, tmp_path / "log", environment) as started:
        assert started.wait() == 0, started.output

    assert "has been replaced" not in started.output
    assert " 500\n" not in started.output
    assert started.output.endswith("201\n")
