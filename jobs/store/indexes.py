"""Index changes for migrations of tables in use: PostgreSQL makes them without blocking writers.

A migration with these must set `atomic = False`. If the build is interrupted, PostgreSQL leaves an
invalid index of that name: drop it, and migrate again.
"""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations import AddIndex, RemoveIndex


class _Concurrently:
    atomic = False

    def database_forwards(self, app_label: str, editor: Any, before: Any, after: Any) -> None:
        parent: Any = super()
        parent.database_forwards(app_label, _editor_for(editor), before, after)

    def database_backwards(self, app_label: str, editor: Any, before: Any, after: Any) -> None:
        parent: Any = super()
        parent.database_backwards(app_label, _editor_for(editor), before, after)


class AddIndexConcurrently(_Concurrently, AddIndex):
    """`AddIndex`, and on PostgreSQL `CREATE INDEX CONCURRENTLY`."""


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
        self.editor.add_index(model, index, concurrently=True)

    def remove_index(self, model: Any, index: Any) -> None:
        self.editor.remove_index(model, index, concurrently=True)


def _editor_for(editor: Any) -> Any:
    return _Editor(editor) if editor.connection.vendor == "postgresql" else editor
