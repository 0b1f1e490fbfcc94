"""Quiet, Terminate and Resume: what the operator is asked, and what becomes of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs import dashboard
from jobs.admin.confirm import Answer, Question, ask, back, trace
from jobs.database import atomic

from ..lifecycle import WorkerState
from ..models import Worker
from ..querysets import WorkerQuerySet

SHOWN_JOBS = 500
"""Jobs named on a confirmation page; the others are counted."""


def jobs_in_hand(workers: Sequence[Any]) -> dict[str, Any]:
    """Pair each worker with the jobs in its hands: for a confirmation page."""
    named: dict[str, list[Any]] = {worker.pk: [] for worker in workers}
    jobs = dashboard.held(named).only("type", "queue", "attempt", "started_at", "reserved_by")
    for job in jobs[:SHOWN_JOBS]:
        named[job.reserved_by].append(job)
    rows = [
        (worker, named[worker.pk], worker.in_hand - len(named[worker.pk])) for worker in workers
    ]
    return {"workers": rows, "total": sum(worker.in_hand for worker in workers)}


def direct(model_admin: Any, request: HttpRequest, workers: Any, directive: WorkerState) -> Any:
    """Ask, and then ask the workers: they hear it in their next heartbeat's reply (§4.4)."""
    answer = ask(model_admin, request, workers, QUESTIONS[directive])
    if not isinstance(answer, Answer):
        return answer
    said = gettext("Directed to “%(state)s”.") % {"state": directive}
    count = _order(
        request,
        answer,
        f"{directive}_worker",
        said,
        lambda chosen: chosen.direct(directive),
    )
    text = ngettext(
        "%(count)d worker will hear “%(directive)s” at its next heartbeat.",
        "%(count)d workers will hear “%(directive)s” at their next heartbeat.",
        count,
    ) % {"count": count, "directive": directive}
    return _tell(model_admin, request, text, count, len(answer.objects))


def resume(model_admin: Any, request: HttpRequest, workers: Any) -> Any:
    """Ask, and then take `quiet` back from those that an operator quieted (ARCHITECTURE §12)."""
    answer = ask(model_admin, request, workers, QUESTIONS[WorkerState.RUNNING])
    if not isinstance(answer, Answer):
        return answer
    count = _order(
        request, answer, "resume_worker", gettext("Resumed."), lambda chosen: chosen.resume()
    )
    text = ngettext(
        "%(count)d worker is given jobs again, from its next heartbeat on.",
        "%(count)d workers are given jobs again, from their next heartbeat on.",
        count,
    ) % {"count": count}
    return _tell(model_admin, request, text, count, len(answer.objects))


def _order(
    request: HttpRequest,
    answer: Answer,
    permission: str,
    said: str,
    verb: Callable[[WorkerQuerySet], int],
) -> int:
    """Order it and write it into the history of each worker, or neither."""
    with atomic():
        count = verb(Worker.objects.filter(pk__in=answer.ids))
        trace(request, permission, answer.objects, answer, message=said, count=count)
        return count


def _tell(model_admin: Any, request: HttpRequest, text: str, count: int, asked: int) -> Any:
    if asked > count:
        rest = ngettext(
            "%(count)d hears nothing new: it is there already, further on, or gone.",
            "%(count)d hear nothing new: they are there already, further on, or gone.",
            asked - count,
        ) % {"count": asked - count}
        text = f"{text} {rest}"
    model_admin.message_user(request, text, messages.SUCCESS if count else messages.WARNING)
    return back(request)


QUESTIONS = {
    WorkerState.QUIET: Question(
        action="quiet",
        title=_("Quiet workers"),
        consequence=_(
            "From now on these workers are given no more jobs. They finish the jobs in their "
            "hands and stay. Resume takes it back."
        ),
        button=_("Quiet these workers"),
        template="admin/ojs/confirm_workers.html",
        details=jobs_in_hand,
    ),
    WorkerState.TERMINATE: Question(
        action="terminate",
        title=_("Terminate workers"),
        consequence=_(
            "From now on these workers are given no more jobs. They have their grace period to "
            "finish the jobs in their hands, and then stop; what is not finished is recovered and "
            "tried again. There is no way back."
        ),
        button=_("Terminate these workers"),
        is_destructive=True,
        template="admin/ojs/confirm_workers.html",
        details=jobs_in_hand,
    ),
    WorkerState.RUNNING: Question(
        action="resume",
        title=_("Resume workers"),
        consequence=_(
            "Workers that an operator quieted are given jobs again. One that quieted itself has "
            "its own reasons and is left alone, and so is one that was told to terminate."
        ),
        button=_("Resume these workers"),
        template="admin/ojs/confirm_workers.html",
        details=jobs_in_hand,
    ),
}
