"""What a site does not switch on costs it nothing: not even an import, but for its declaration."""

from __future__ import annotations

import subprocess
import sys

from tests import processes

SERVE = """
import sys, django
django.setup()
from django.urls import Resolver404, resolve, reverse
resolve("/ojs/v1/workers/fetch")
for path in ("/flare/v1/workers/poll", "/flare/v1/jobs/1", "/work"):
    try:
        resolve(path)
    except Resolver404:
        continue
    raise SystemExit(f"{path} is served")
reverse("admin:ojs_workers_worker_changelist")
ours = ("workers.bindings.flare.", "workers.bindings.agq.", "workers.bindings.rota.")
loaded = {name for name in sys.modules if name.startswith((*ours, "websockets"))}
print(sorted(loaded - {"workers.bindings.flare.urls"}))
"""


def test_the_optional_protocols_are_not_imported_where_they_are_off():
    environment = processes.environment("sqlite://:memory:")
    done = subprocess.run(
        [sys.executable, "-c", SERVE],
        env=environment,
        cwd=processes.ROOT,
        capture_output=True,
        text=True,
    )

    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
