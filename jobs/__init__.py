"""What a job is and how it moves: the Open Job Spec core (Layer 1) as a Django app.

import jobs

jobs.enqueue("email.send", ["user@example.com"], queue="mail")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .producer import acancel, aenqueue, aenqueue_many, cancel, enqueue, enqueue_many

__version__ = "0.1.0"
OPEN_JOB_SPEC = True
"""How the two apps know each other from packages of a site that have the same names."""
__all__ = ["acancel", "aenqueue", "aenqueue_many", "cancel", "enqueue", "enqueue_many"]


def __getattr__(name: str) -> Any:
    # Late: `INSTALLED_APPS` imports this package before any model may be imported.
    if name in __all__:
        from . import producer

        # Once: Python asks here only for what it does not find.
        globals()[name] = found = getattr(producer, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
