"""Authorization: one table of permissions, for every command of every protocol.

`table` is the mechanism. `producing` declares what `jobs` serves, `workers.access.table` the Admin
API for workers, and the package of each worker protocol its own commands. A command without a
declaration is refused.
"""

from ..models import Scope
from . import producing  # noqa: F401 - declares
from .table import (
    Binding,
    Command,
    OfProject,
    OfWorker,
    authorize,
    bindings,
    commands,
    declare,
    find,
    is_redacted,
    sees_all,
)

__all__ = [
    "Binding",
    "Command",
    "OfProject",
    "OfWorker",
    "Scope",
    "authorize",
    "bindings",
    "commands",
    "declare",
    "find",
    "is_redacted",
    "sees_all",
]
