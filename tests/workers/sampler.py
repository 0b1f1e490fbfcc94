"""A sampler inside the database: possible concurrent jobs after each change of a worker.

It misses no moment, and uses none of our code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.database import connection

CAPACITY = """
    INSERT INTO sampled_capacity (capacity)
    SELECT COALESCE(SUM(concurrency), 0)
      FROM ojs_workers_worker
     WHERE state = 'running' AND directive IN ('', 'running')
"""
BEGIN = {
    "sqlite": (
        "CREATE TABLE sampled_capacity (capacity integer)",
        f"CREATE TRIGGER sampled AFTER UPDATE ON ojs_workers_worker BEGIN {CAPACITY}; END",
    ),
    "postgresql": (
        "CREATE TABLE sampled_capacity (capacity integer)",
        f"""CREATE FUNCTION sampled() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN {CAPACITY}; RETURN NULL; END $$""",
        """CREATE TRIGGER sampled AFTER UPDATE ON ojs_workers_worker
           FOR EACH STATEMENT EXECUTE FUNCTION sampled()""",
    ),
}
END = {
    "sqlite": ("DROP TRIGGER sampled", "DROP TABLE sampled_capacity"),
    "postgresql": (
        "DROP TRIGGER sampled ON ojs_workers_worker",
        "DROP FUNCTION sampled",
        "DROP TABLE sampled_capacity",
    ),
}


def _run(statements: tuple[str, ...]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


class Sampler:
    @property
    def capacities(self) -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT capacity FROM sampled_capacity")
            return [capacity for (capacity,) in cursor.fetchall()]


@contextlib.contextmanager
def sampling() -> Iterator[Sampler]:
    """Sample while the block runs, including changes by other processes and threads."""
    _run(BEGIN[connection.vendor])
    try:
        yield Sampler()
    finally:
        _run(END[connection.vendor])
