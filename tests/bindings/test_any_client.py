"""A running server under generated requests, valid and not, of the whole OpenAPI document.

No response may be a 5xx or deviate from its description, in status, media type, headers or schema.
The seed is fixed, so that a failure repeats.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.once import once_is_enough_on_postgresql
from workers.openapi.generate import document, written

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
EXAMPLES = 1
"""For each endpoint, besides those of the description. By hand and for longer:
`manage.py openapi openapi.json`, and then `schemathesis run openapi.json --url … --max-examples
200`, in all phases."""

STREAMS = (
    "/ojs/v1/events/stream",
    "/ojs/v1/jobs/{job_id}/events",
    "/ojs/v1/queues/{name}/events",
)

pytestmark = [once_is_enough_on_postgresql, pytest.mark.slow]


def test_no_request_is_answered_otherwise_than_described(database_url, tmp_path):
    with processes.own_database(database_url, tmp_path) as url:
        environment = processes.environment(url, ALLOW_ANONYMOUS=1, FLARE_ENABLED=1, MAX_WAIT=0.1)
        with processes.server(tmp_path, environment) as api:
            file = tmp_path / "openapi.json"
            file.write_text(written(document()))
            command = [str(Path(sys.executable).with_name("schemathesis")), "run", str(file)]
            command += ["--url", api.url, "--checks", ",".join(CHECKS)]
            command += ["--phases", "examples,fuzzing", "--max-examples", str(EXAMPLES)]
            command += ["--seed", "20260212", "--continue-on-failure", "--no-color"]
            command += ["--suppress-health-check", "all", "--warnings", "off"]
            # It would delete what the others need, and exists only in conformance mode.
            command += ["--exclude-path", "/ojs/v1/admin/reset"]
            # Once begun, maintenance would refuse everything else: 503, as described.
            command += ["--exclude-path", "/ojs/v1/admin/system/maintenance"]
            # They need an event loop, and do not end: tested in `tests/realtime`.
            for path in STREAMS:
                command += ["--exclude-path", path]
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=380, cwd=tmp_path
            )

    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
