"""Autovacuum of the large tables goes by what is dead, not by a share of all rows."""

from __future__ import annotations

import pytest

from tests.database import connection, migrate

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]
TABLES = ("ojs_jobs_job", "ojs_jobs_event")


def settings(table: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT option_name, option_value FROM pg_class, pg_options_to_table(reloptions)"
            " WHERE oid = %s::regclass",
            [table],
        )
        return dict(cursor.fetchall())


@pytest.mark.parametrize("table", TABLES)
def test_a_table_of_ten_million_rows_is_vacuumed_after_no_more_dead_ones_than_a_small_one(table):
    given = settings(table)

    assert given["autovacuum_vacuum_scale_factor"] == "0"
    assert int(given["autovacuum_vacuum_threshold"]) <= 200_000


@pytest.mark.parametrize("table", TABLES)
def test_a_vacuum_does_not_sleep_most_of_the_time(table):
    assert int(settings(table)["autovacuum_vacuum_cost_limit"]) > 200  # PostgreSQL's default


def test_nor_is_an_operators_own_pace_changed(at_the_newest):
    migrate("0033_dead_letter_choices")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ojs_jobs_job SET (autovacuum_vacuum_cost_limit = 7)")

    migrate("0034_vacuum_pace")
    assert settings("ojs_jobs_job")["autovacuum_vacuum_cost_limit"] == "7"

    migrate("0033_dead_letter_choices")
    assert settings("ojs_jobs_job")["autovacuum_vacuum_cost_limit"] == "7"
    assert "autovacuum_vacuum_cost_limit" not in settings("ojs_jobs_event")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ojs_jobs_job RESET (autovacuum_vacuum_cost_limit)")


def test_what_an_operator_has_set_survives_an_upgrade_and_the_way_back(at_the_newest):
    migrate("0030_pool_rules")
    assert [settings(table) for table in TABLES] == [{}, {}]
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ojs_jobs_job SET (autovacuum_vacuum_threshold = 7)")

    migrate("0031_vacuum")
    assert settings("ojs_jobs_job") == {
        "autovacuum_vacuum_scale_factor": "0",
        "autovacuum_vacuum_threshold": "7",
    }

    migrate("0030_pool_rules")
    assert settings("ojs_jobs_job") == {"autovacuum_vacuum_threshold": "7"}
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ojs_jobs_job RESET (autovacuum_vacuum_threshold)")
