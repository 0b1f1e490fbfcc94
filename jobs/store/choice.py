"""Which store writes: the one for PostgreSQL, that for Citus, or the portable one (`OJS["STORE"]`).

The portable store also runs on PostgreSQL, and on engines that speak its protocol but not all of
its dialect. Citus refuses some of the statements made for PostgreSQL, and runs others on another
node than the one that all processes are connected to: the store for it is the portable one, with
variants of those statements for enqueue, fetch and ack.
"""

from __future__ import annotations

from ..conf import ojs_settings
from .database import is_postgresql, prepare_nothing_if

AUTO, POSTGRESQL, CITUS, PORTABLE = "auto", "postgresql", "citus", "portable"
CHOICES = (AUTO, POSTGRESQL, CITUS, PORTABLE)


def fits(choice: str) -> bool:
    """Whether the database of jobs takes the statements of this choice."""
    return choice in (AUTO, PORTABLE) or is_postgresql()


def chosen() -> str:
    """Return `POSTGRESQL`, `CITUS` or `PORTABLE`; on another database, always the last one."""
    if not is_postgresql():
        return PORTABLE
    choice: str = ojs_settings.STORE
    return POSTGRESQL if choice == AUTO else choice


def is_portable() -> bool:
    """Whether statements must be such as any database takes."""
    return chosen() != POSTGRESQL


# Citus refuses some statements that are prepared.
prepare_nothing_if(is_portable)
