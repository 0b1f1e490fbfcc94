"""What it means that a statement, prepared on a connection, is not found there again."""

from __future__ import annotations

from django.utils.translation import gettext_noop

POOLED = gettext_noop(
    "The database does not keep prepared statements. Behind a pooler in transaction mode, set "
    "'DISABLE_SERVER_SIDE_CURSORS'."
)
