"""The third configuration of the test suite: jobs and workers in a separate database."""

from __future__ import annotations

import os
from typing import Any

import dj_database_url

OURS = ("ojs_jobs", "ojs_workers")
ALIAS = "jobs"
OTHER = "OTHER_DATABASE_URL"
"""The variable that names the other database, for processes that a test starts."""
PATH = "tests.routers.JobsApart"


class JobsApart:
    """Our apps in the database `jobs`, and only there; everything else in `default`."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return ALIAS if model._meta.app_label in OURS else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (app_label in OURS) == (db == ALIAS)


def take_apart(databases: dict[str, Any]) -> None:
    """Make the default of `databases` the jobs' database, and add the other one."""
    databases[ALIAS] = databases["default"]
    databases["default"] = dict(dj_database_url.parse(os.environ[OTHER]))
