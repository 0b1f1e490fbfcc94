"""Index changes for migrations of tables in use: PostgreSQL makes them without blocking writers.

A migration with these must set `atomic = False`. One that was interrupted may be run again: an
index that is there already stays, and an invalid one, which PostgreSQL leaves behind, is made anew.

PostgreSQL cannot do this for a partitioned table: there, an index locks out writers as usual.
"""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations import AddIndex, RemoveIndex

PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)"
VALIDITY = """
    SELECT index.indisvalid
      FROM pg_index AS index
     WHERE index.indexrelid = to_regclass(%s)
"""
PRESENCE = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = %s"
"""Django's introspection would parse the table's statement and all its indexes for this."""


class _Concurrently:
    atomic = False

    def database_forwards(self, app_label: str, editor: Any, before: Any, after: Any) -> None:
        parent: Any = super()
        parent.database_forwards(app_label, _Editor(editor), before, after)

    def database_backwards(self, app_label: str, editor: Any, before: Any, after: Any) -> None:
        parent: Any = super()
        parent.database_backwards(app_label, _Editor(editor), before, after)


class AddIndexConcurrently(_Concurrently, AddIndex):
    """`AddIndex`, and on PostgreSQL `CREATE INDEX CONCURRENTLY`, unless it is there already."""


class RemoveIndexConcurrently(_Concurrently, RemoveIndex):
    """`RemoveIndex`, and on PostgreSQL `DROP INDEX CONCURRENTLY`."""


class _Editor:
    """A schema editor that does not block the writers of a table."""

    def __init__(self, editor: Any) -> None:
        self.editor = editor

    @property
    def connection(self) -> Any:
        return self.editor.connection

    def add_index(self, model: Any, index: Any) -> None:
        valid = self._validity(index.name)
        if valid is False:
            self.editor.remove_index(model, index, **self._how(model))
        if not valid:
            self.editor.add_index(model, index, **self._how(model))

    def remove_index(self, model: Any, index: Any) -> None:
        self.editor.remove_index(model, index, **self._how(model))

    @property
    def _is_postgresql(self) -> bool:
        return bool(self.connection.vendor == "postgresql")

    def _how(self, model: Any) -> dict[str, bool]:
        if not self._is_postgresql:
            return {}
        with self.connection.cursor() as cursor:
            cursor.execute(PARTITIONED, [self.editor.quote_name(model._meta.db_table)])
            row = cursor.fetchone()
        return {} if row and row[0] else {"concurrently": True}

    def _validity(self, name: str) -> bool | None:
        """Return whether the index was built to its end; None if there is none."""
        with self.connection.cursor() as cursor:
            if self._is_postgresql:
                cursor.execute(VALIDITY, [self.editor.quote_name(name)])
            else:
                cursor.execute(PRESENCE, [name])
            row = cursor.fetchone()
        return None if row is None else bool(row[0])
