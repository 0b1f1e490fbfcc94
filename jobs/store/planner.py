"""Keeps the plans of the hot statements suited to tables that grow faster than autovacuum looks.

A session plans these statements once (`prepared`). On a table of a few pages, the best plan reads
the whole table, and stays in use until the table is analyzed: autovacuum looks once a minute, and a
queue can grow from nothing to a million jobs in that time. `ANALYZE` makes every session plan
again.
"""

from __future__ import annotations

from functools import cache

from django.apps import apps

from .choice import is_portable
from .database import APPS, connection, run
from .locks import Busy, locking_within

GROWN = 4
"""How many times as large a table must be as when it was last analyzed or vacuumed."""
FEW, MANY = 16, 1024
"""Pages: a smaller table is read quickly, and one that was larger than that when it was analyzed
is no longer read as a whole."""
LOCK_TIMEOUT = "100ms"
"""Less than `deadlock_timeout`, after which PostgreSQL would cancel a vacuum that is under way."""
# Only the owner may analyze a table; others would get a warning each time.
FIND = """
    SELECT class.oid::regclass::text
      FROM unnest(%s::text[]) AS name
      JOIN pg_class AS class ON class.oid = to_regclass(name)
     WHERE class.relkind = 'r'
       AND class.relpages < %s
       AND pg_relation_size(class.oid) / current_setting('block_size')::bigint
           >= greatest(%s * class.relpages, %s)
       AND pg_has_role(class.relowner, 'USAGE')
"""


def analyze_grown() -> int:
    """Analyze the tables of both apps that have grown a lot since; return how many.

    A table that another session vacuums or analyzes at the moment is left for the next time.
    """
    if is_portable():
        return 0
    grown = run(FIND, [_tables(), MANY, GROWN, FEW])
    return sum(_analyze(name) for (name,) in grown)


@cache
def _tables() -> list[str]:
    return [model._meta.db_table for app in APPS for model in apps.get_app_config(app).get_models()]


def _analyze(table: str) -> bool:
    try:
        with locking_within(LOCK_TIMEOUT), connection().cursor() as cursor:
            cursor.execute(f"ANALYZE {table}")
    except Busy:
        return False
    return True
