"""Runtime of a worker: a process that runs jobs (OJS worker §2, §4, §7 to §9).

Usually started by `manage.py runjobworker`; use `WorkerProcess` to embed it. A site writes the
handlers:

    from workers.runtime import handler

    @handler("email.send")
    def send(context, to, template): ...
"""

from .context import JobContext
from .handlers import handler
from .outcomes import Discard, Retry, Snooze

__all__ = ["Discard", "JobContext", "Retry", "Snooze", "handler"]
