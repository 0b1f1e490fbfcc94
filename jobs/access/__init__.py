"""Who may do what: one table for every command of every protocol, and what asks it.

`table` is the mechanism and `producing` declares what `jobs` serves; `table` adds what
workers and their operators say. A command that is in no declaration is refused.
"""

from . import producing  # noqa: F401 - declares
from .table import (
    Binding,
    Command,
    OfProject,
    OfWorker,
    authorize,
    commands,
    declare,
    find,
    is_redacted,
)

__all__ = [
    "Binding",
    "Command",
    "OfProject",
    "OfWorker",
    "authorize",
    "commands",
    "declare",
    "find",
    "is_redacted",
]
