"""The test database as seen by other processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.contrib.auth.models import Group

from tests.database import connection
from tests.processes import PATIENCE

READ = """
import django
django.setup()
from django.contrib.auth.models import Group
print(*Group.objects.values_list("name", flat=True))
"""


def test_another_process_reads_what_a_test_committed(database_url, settings):
    Group.objects.create(name="operators")
    environment = {"DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "ojs_project.settings"}

    reader = subprocess.run(
        [sys.executable, "-c", READ],
        cwd=settings.BASE_DIR,
        env=os.environ | environment | {"DJANGO_DEBUG": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert reader.stdout.split() == ["operators"], reader.stderr


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite's own options")
def test_the_sqlite_database_is_one_that_many_processes_may_use(db):
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        assert cursor.fetchone() == ("wal",)
        cursor.execute("PRAGMA busy_timeout")
        assert cursor.fetchone() == (30_000,)
