"""A site's own app, as small as can be: what workers run in the tests of `runjobworker`."""

from typing import Any

TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "jobs.backends.OJSBackend",
        "QUEUES": [],
        "OPTIONS": {"TYPES": {"invoice.send": "tests.shop.tasks.send_invoice"}},
    }
}
