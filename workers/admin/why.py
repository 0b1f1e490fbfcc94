"""What of the fleet keeps a job from running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext as _

from jobs.admin.why import reason
from jobs.expressions import JSONArrayHas
from jobs.lifecycle import State

from ..condition import Condition, condition, in_hand
from ..models import Worker


@reason
def nobody_serves_it(job: Any) -> Iterator[str]:
    """No live worker, none that runs, or none with a hand free."""
    if job.state == State.PENDING:
        return
    serving = Worker.objects.live().filter(JSONArrayHas("queues", job.queue))
    found = list(
        serving.annotate(in_hand=in_hand())
        .annotate(condition=condition())
        .values_list("condition", "in_hand", "concurrency")
    )
    about = {"queue": job.queue}
    if not found:
        yield _("No live worker serves the queue “%(queue)s”.") % about
        return
    running = [(held, most) for state, held, most in found if state == Condition.RUNNING]
    if not running:
        yield _("No worker that serves “%(queue)s” is running: they are quiet or silent.") % about
    elif all(most is not None and held >= most for held, most in running):
        text = _("All %(count)d workers that serve “%(queue)s” are busy.")
        yield text % (about | {"count": len(running)})
