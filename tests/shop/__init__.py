"""A site's own minimal app: the jobs of workers in the tests of `runjobworker`."""

from typing import Any

TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "jobs.backends.OJSBackend",
        "QUEUES": [],
        "OPTIONS": {"TYPES": {"invoice.send": "tests.shop.tasks.send_invoice"}},
    }
}
