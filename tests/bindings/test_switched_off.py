"""Features that are switched off cost nothing: no import beyond their declaration."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import processes
from tests.once import once_is_enough

pytestmark = once_is_enough

SERVE = """
import sys, django
django.setup()
from django.urls import Resolver404, resolve, reverse
resolve("/ojs/v1/workers/fetch")
for path in ("/flare/v1/workers/poll", "/flare/v1/jobs/1", "/work", "/ojs/v1/admin/reset"):
    try:
        if resolve(path).func.__name__ == "not_found":
            continue
    except Resolver404:
        continue
    raise SystemExit(f"{path} is served")
reverse("admin:ojs_workers_worker_changelist")
ours = ("workers.bindings.flare.", "workers.bindings.agq.", "workers.bindings.rota.")
ours = (*ours, "workers.conformance")
loaded = {name for name in sys.modules if name.startswith((*ours, "websockets"))}
print(sorted(loaded - {"workers.bindings.flare.urls"}))
"""


LOADED = """
import sys, django
django.setup()
print("workers.conformance" in sys.modules)
"""


def printed(program, **options):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=processes.environment("sqlite://:memory:", **options),
        cwd=processes.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_optional_protocols_and_test_hooks_are_not_imported_where_they_are_off():
    assert printed(SERVE) == "[]"


@pytest.mark.slow
def test_test_hooks_are_loaded_at_the_start_where_they_are_on():
    """Not with the first reset, which may reach another server process."""
    assert printed(LOADED, CONFORMANCE_MODE=1) == "True"
