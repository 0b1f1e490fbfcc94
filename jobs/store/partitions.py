"""The record of events as a table partitioned by time, on PostgreSQL.

The ids of events are drawn in the order of time, so ranges of ids are ranges of time: the primary
key stays as it is, every cursor stays valid, and the newest event is always in the last partition.
A partition whose events are all old enough is dropped, which leaves nothing to vacuum.

Nothing here waits for long while it holds up others: each change to the catalog tries for a
fraction of a second to get its locks, and raises `Busy` otherwise.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .database import connection, is_postgresql
from .locks import LOCK_TIMEOUT, locking_within

TABLE = "ojs_jobs_event"
FORMER = f"{TABLE}_p0"
"""The name that a table gets as the first partition."""
REST = f"{TABLE}_rest"
"""The default partition: gets what no other is made for, so that no event is ever refused."""
BOUND = "ojs_event_bound"
"""A constraint of the table that is about to become the first partition: below which id it stays.
It spares the step that attaches it a look at every row."""
MANY = "ojs partitionevents"
PARTITIONS = """
    SELECT class.relname, pg_get_expr(class.relpartbound, class.oid), class.reltuples::bigint,
           pg_total_relation_size(class.oid)
      FROM pg_inherits AS part
      JOIN pg_class AS class ON class.oid = part.inhrelid
     WHERE part.inhparent = %s::regclass
"""
LIMITS = re.compile(r"FROM \('?(-?\d+|MINVALUE)'?\) TO \('?(\d+)'?\)")
RELATION = """
    SELECT quote_ident(space.nspname), quote_ident(owner.rolname), class.relkind = 'p',
           pg_get_serial_sequence(%s, 'id'),
           pg_sequence_last_value(pg_get_serial_sequence(%s, 'id')::regclass)
      FROM pg_class AS class
      JOIN pg_namespace AS space ON space.oid = class.relnamespace
      JOIN pg_roles AS owner ON owner.oid = class.relowner
     WHERE class.oid = %s::regclass
"""
OPTIONS = "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = %s::regclass"
INDEXES = """
    SELECT quote_ident(class.relname), pg_get_indexdef(index.indexrelid), index.indisprimary
      FROM pg_index AS index
      JOIN pg_class AS class ON class.oid = index.indexrelid
     WHERE index.indrelid = %s::regclass
     ORDER BY index.indisprimary DESC, class.relname
"""
TRIGGERS = """
    SELECT quote_ident(tgname), pg_get_triggerdef(oid)
      FROM pg_trigger
     WHERE tgrelid = %s::regclass AND NOT tgisinternal
"""
GRANTS = """
    SELECT CASE WHEN item.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(role.rolname) END,
           item.privilege_type, item.is_grantable
      FROM pg_class AS class, aclexplode(class.relacl) AS item
 LEFT JOIN pg_roles AS role ON role.oid = item.grantee
     WHERE class.oid = %s::regclass AND item.grantee <> class.relowner
"""


class Partition(NamedTuple):
    """One part of the record."""

    name: str
    lower: int
    """Its first id; 0 in the one that begins with everything."""
    upper: int
    """The first id after it."""
    rows: int
    """About how many events it has, as of its last vacuum."""
    bytes: int


class Relation(NamedTuple):
    """The table of events."""

    schema: str
    """Quoted where necessary, as the owner and the name of the sequence."""
    owner: str
    is_partitioned: bool
    sequence: str
    last_id: int
    """The last id that was drawn."""


@dataclass(frozen=True)
class Layout:
    """All partitions."""

    ranges: tuple[Partition, ...]
    """In the order of their ids."""
    rest: Partition | None

    @property
    def upper(self) -> int:
        """The first id that no range has."""
        return self.ranges[-1].upper if self.ranges else 0


def relation() -> Relation:
    ((schema, owner, is_partitioned, sequence, last_id),) = _rows(RELATION, [TABLE] * 3)
    return Relation(schema, owner, is_partitioned, sequence, last_id or 0)


def is_partitioned() -> bool:
    if not is_postgresql():
        return False
    found = _rows("SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [TABLE])
    return bool(found[0][0])


def layout() -> Layout:
    """Return the partitions; of a table without any, an empty layout."""
    ranges, rest = [], None
    for name, bound, rows, size in _rows(PARTITIONS, [TABLE]):
        if limits := LIMITS.search(bound):
            lower, upper = limits.groups()
            first = 0 if lower == "MINVALUE" else int(lower)
            ranges.append(Partition(name, first, int(upper), max(0, rows), size))
        else:
            rest = Partition(name, 0, 0, max(0, rows), size)
    return Layout(tuple(sorted(ranges, key=lambda part: part.lower)), rest)


def size() -> tuple[int, int]:
    """Return about how many events a table without partitions has, and its bytes."""
    query = "SELECT greatest(reltuples, 0)::bigint, pg_total_relation_size(oid) FROM pg_class"
    ((rows, size),) = _rows(f"{query} WHERE oid = %s::regclass", [TABLE])
    return rows, size


# The move


def bound() -> tuple[int, bool] | None:
    """Return the limit that the table has been given, and whether all its rows are known to keep
    it; None if it has none."""
    found = _rows(
        "SELECT pg_get_constraintdef(oid), convalidated FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND conname = %s",
        [TABLE, BOUND],
    )
    if not found:
        return None
    limit = re.search(r"id < '?(\d+)", found[0][0])
    assert limit is not None
    return int(limit[1]), found[0][1]


def set_bound(upper: int) -> None:
    """Let the table accept ids below `upper` only, without looking at those that are there."""
    with locking_within(LOCK_TIMEOUT):
        _do(f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {BOUND}")
        _do(f"ALTER TABLE {TABLE} ADD CONSTRAINT {BOUND} CHECK (id < {upper}) NOT VALID")


def check_bound() -> None:
    """Read all rows once, beside those who write."""
    _do(f"ALTER TABLE {TABLE} VALIDATE CONSTRAINT {BOUND}")


def drop_bound() -> None:
    with locking_within(LOCK_TIMEOUT):
        _do(f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS {BOUND}")


@contextlib.contextmanager
def alone() -> Iterator[bool]:
    """Hold the lock of the command for the length of the block; yields whether it was free."""
    # Of the schema, since the table changes under it.
    key = "hashtextextended(%s, (SELECT relnamespace FROM pg_class WHERE oid = %s::regclass)::int8)"
    ((free,),) = _rows(f"SELECT pg_try_advisory_lock({key})", [MANY, TABLE])
    try:
        yield free
    finally:
        if free:
            _rows(f"SELECT pg_advisory_unlock({key})", [MANY, TABLE])


def switch() -> None:
    """Put a partitioned table in the place of the table, which becomes its first partition.

    All or nothing, in one transaction. It reads no rows: the bound says what they are.

    Raises:
        Busy: the table was in use.
    """
    with locking_within(LOCK_TIMEOUT):
        # No writer is left from here on, nor can one begin.
        _do(f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE")
        before = relation()
        limit = bound()
        assert limit is not None and limit[1], "the bound is checked first"
        indexes = _rows(INDEXES, [TABLE])
        triggers = _rows(TRIGGERS, [TABLE])
        grants = _rows(GRANTS, [TABLE])
        # The sequence belongs to the identity of a column, so the new table gets another of the
        # same name. It goes on where this one was.
        of_sequence = _rows(GRANTS, [before.sequence])
        _do(f"ALTER TABLE {TABLE} ALTER id DROP IDENTITY")
        for trigger, _ in triggers:
            _do(f"DROP TRIGGER {trigger} ON {TABLE}")
        for index, _, _ in indexes:
            _do(f"ALTER INDEX {before.schema}.{index} RENAME TO {_of_former(index)}")
        _do(f"ALTER TABLE {TABLE} RENAME TO {FORMER}")
        _do(
            f"CREATE TABLE {before.schema}.{TABLE} (LIKE {before.schema}.{FORMER} INCLUDING ALL"
            " EXCLUDING INDEXES EXCLUDING STATISTICS) PARTITION BY RANGE (id)"
        )
        _do(f"ALTER TABLE {TABLE} DROP CONSTRAINT {BOUND}")
        _do(
            f"ALTER TABLE {TABLE} ALTER id ADD GENERATED BY DEFAULT AS IDENTITY"
            f" (SEQUENCE NAME {before.sequence})"
        )
        if before.last_id:
            _rows("SELECT setval(%s, %s)", [before.sequence, before.last_id])
        for index, definition, is_primary in indexes:
            if is_primary:
                _do(f"ALTER TABLE {TABLE} ADD CONSTRAINT {index} PRIMARY KEY (id)")
            else:
                _do(definition)
        for _, definition in triggers:
            _do(definition)
        for name, given in ((TABLE, grants), (f"SEQUENCE {before.sequence}", of_sequence)):
            for grantee, privilege, grantable in given:
                option = " WITH GRANT OPTION" if grantable else ""
                _do(f"GRANT {privilege} ON {name} TO {grantee}{option}")
        _do(f"ALTER TABLE {TABLE} OWNER TO {before.owner}")
        limits = f"FOR VALUES FROM (MINVALUE) TO ({limit[0]})"
        _do(f"ALTER TABLE {TABLE} ATTACH PARTITION {FORMER} {limits}")
        _do(f"ALTER TABLE {FORMER} DROP CONSTRAINT {BOUND}")
        _attach(before, REST, FORMER, "DEFAULT")


def _of_former(index: str) -> str:
    return f'{index[:-1]}_p0"' if index.endswith('"') else f"{index}_p0"


# Housekeeping


def add(lower: int, upper: int) -> None:
    """Make the partition of the ids from `lower` on and below `upper`.

    Raises:
        Busy: the table was in use.
    """
    with locking_within(LOCK_TIMEOUT):
        newest = layout().ranges[-1].name
        limits = f"FOR VALUES FROM ({lower}) TO ({upper})"
        _attach(relation(), f"{TABLE}_p{lower}", newest, limits)


def drop(part: Partition) -> None:
    """Drop a partition and all events in it.

    Raises:
        Busy: the table was in use.
    """
    with locking_within(LOCK_TIMEOUT):
        _do(f"DROP TABLE {relation().schema}.{part.name}")


def _attach(parent: Relation, name: str, model: str, limits: str) -> None:
    """Make a partition with the storage parameters of another.

    It is made first and attached then: `CREATE TABLE … PARTITION OF` would lock out all who use
    the others, and attaching only locks the default partition.
    """
    _do(f"CREATE TABLE {parent.schema}.{name} (LIKE {TABLE} INCLUDING ALL EXCLUDING IDENTITY)")
    ((options,),) = _rows(OPTIONS, [model])
    if options:
        _do(f"ALTER TABLE {name} SET ({options})")
    _do(f"ALTER TABLE {name} OWNER TO {parent.owner}")
    _do(f"ALTER TABLE {TABLE} ATTACH PARTITION {name} {limits}")


def _do(statement: str) -> None:
    with connection().cursor() as cursor:
        cursor.execute(statement)


def _rows(query: str, parameters: list[Any] | None = None) -> list[Any]:
    with connection().cursor() as cursor:
        cursor.execute(query, parameters)
        return list(cursor.fetchall())
