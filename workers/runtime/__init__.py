"""The worker's side of the protocol: a process that runs jobs (OJS worker §2, §4, §7 to §9).

`manage.py runjobworker` is its usual door; `WorkerProcess` is the one for embedding. Handlers are
what a site writes:

    from workers.runtime import handler

    @handler("email.send")
    def send(context, to, template): ...
"""

from .context import JobContext
from .handlers import handler
from .outcomes import Discard, Retry, Snooze

__all__ = ["Discard", "JobContext", "Retry", "Snooze", "handler"]
