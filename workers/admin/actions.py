"""Actions Quiet, Terminate and Resume: their confirmation pages and effects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobs.access.audit import of_request
from jobs.admin.confirm import Answer, Question, ask, back, say, trace
from jobs.admin.words import word
from jobs.record import dashboard
from jobs.store.database import atomic

from ..fleet import orders as fleet
from ..lifecycle import WorkerState
from ..models import UNFINISHED, OperationStep, Phase, Worker

SHOWN_JOBS = 500
"""Jobs named on a confirmation page; the others are counted."""


def jobs_in_hand(workers: Sequence[Any]) -> dict[str, Any]:
    """Pair each worker with the jobs it holds, for a confirmation page."""
    named: dict[str, list[Any]] = {worker.pk: [] for worker in workers}
    jobs = dashboard.held(named).only("type", "queue", "attempt", "started_at", "reserved_by")
    for job in jobs[:SHOWN_JOBS]:
        named[job.reserved_by].append(job)
    rows = [
        (worker, named[worker.pk], worker.in_hand - len(named[worker.pk])) for worker in workers
    ]
    return {"workers": rows, "total": sum(worker.in_hand for worker in workers)}


def consequences(workers: Sequence[Any]) -> dict[str, Any]:
    """The jobs held, and the queues that no worker would serve, for a confirmation page."""
    unserved = fleet.unserved_without([worker.pk for worker in workers])
    return jobs_in_hand(workers) | {"unserved": unserved}


def before_they_stop(workers: Sequence[Any]) -> dict[str, Any]:
    """As `consequences`, and how many of the workers cannot be asked to stop."""
    unasked = sum(not fleet.can_hear(worker, WorkerState.TERMINATE) for worker in workers)
    return consequences(workers) | {"unasked": unasked}


def about_to_be_drained(workers: Sequence[Any]) -> dict[str, Any]:
    """The jobs held, and how many of the workers a drain will quiet again."""
    waiting = OperationStep.objects.filter(
        is_open=True,
        phase=Phase.WAITING,
        operation__state__in=UNFINISHED,
        worker_id__in=[worker.pk for worker in workers],
    )
    return jobs_in_hand(workers) | {"drained": waiting.count()}


def live(workers: Any) -> Any:
    return workers.live()


def without_dead(count: int, dead: int) -> str:
    """ "4 live; 21 dead are left out"."""
    alive = ngettext("%(count)d live worker", "%(count)d live workers", count) % {"count": count}
    rest = ngettext(
        "%(count)d that is dead or has left is skipped.",
        "%(count)d that are dead or have left are skipped.",
        dead,
    ) % {"count": dead}
    return f"{alive}; {rest}"


about_live_workers = partial(
    Question, template="admin/ojs/confirm_workers.html", concerns=live, left_out=without_dead
)


def direct(model_admin: Any, request: HttpRequest, workers: Any, directive: WorkerState) -> Any:
    """Ask for confirmation, then direct the workers through their next heartbeat's reply (§4.4).

    `running` withdraws `quiet` from those that an operator quieted (docs/architecture.md).
    """
    answer = ask(model_admin, request, workers, QUESTIONS[directive])
    if not isinstance(answer, Answer):
        return answer
    given = fleet.order(
        Worker.objects.filter(pk__in=answer.ids),
        directive,
        actor=of_request(request),
        reason=answer.reason,
        selection=answer.selection,
    )
    heard = set(given.heard)
    can_hear = [fleet.can_hear(one, directive) for one in answer.objects if one.pk in heard]
    text = _sentences(directive, can_hear.count(True), can_hear.count(False))
    return _tell(model_admin, request, text, given, len(answer.objects))


def _sentences(directive: WorkerState, hear: int, cannot: int) -> str:
    """What happens to the workers that hear of their order, and to those that cannot."""
    if not cannot:
        return _heard(directive, hear)
    enforced = _enforced(directive, cannot)
    return f"{_heard(directive, hear)} {enforced}" if hear else enforced


def _enforced(directive: WorkerState, count: int) -> str:
    """What happens to workers whose protocol has no word for the directive."""
    if directive == WorkerState.RUNNING:
        text = ngettext(
            "%(count)d worker is given jobs again.",
            "%(count)d workers are given jobs again.",
            count,
        )
    elif directive == WorkerState.QUIET:
        text = ngettext(
            "%(count)d worker is given no more jobs.",
            "%(count)d workers are given no more jobs.",
            count,
        )
    else:
        text = ngettext(
            "%(count)d worker is given no more jobs and cannot be asked to stop: stop its process.",
            "%(count)d workers are given no more jobs and cannot be asked to stop: stop their "
            "processes.",
            count,
        )
    return text % {"count": count}


def _heard(directive: WorkerState, count: int) -> str:
    if directive == WorkerState.RUNNING:
        return ngettext(
            "%(count)d worker is given jobs again, from its next heartbeat on.",
            "%(count)d workers are given jobs again, from their next heartbeat on.",
            count,
        ) % {"count": count}
    return ngettext(
        "%(count)d worker will be told “%(directive)s” at its next heartbeat.",
        "%(count)d workers will be told “%(directive)s” at their next heartbeat.",
        count,
    ) % {"count": count, "directive": word(directive)}


def _tell(
    model_admin: Any, request: HttpRequest, text: str, given: fleet.Order, asked: int
) -> HttpResponse:
    count = len(given.heard)
    if asked > count:
        rest = ngettext(
            "%(count)d is not affected: it is in this state already, or further on, or gone.",
            "%(count)d are not affected: they are in this state already, or further on, or gone.",
            asked - count,
        ) % {"count": asked - count}
        text = f"{text} {rest}"
    model_admin.message_user(request, text, messages.SUCCESS if count else messages.WARNING)
    origin = back(request)
    if not count or given.action_id is None:
        return origin
    # The page that shows the workers' progress.
    url = reverse(
        "admin:ojs_workers_worker_order",
        args=[given.action_id],
        current_app=model_admin.admin_site.name,
    )
    return HttpResponseRedirect(f"{url}?{urlencode({'back': origin.url})}")


def unflag(model_admin: Any, request: HttpRequest, workers: Any) -> HttpResponse:
    """Ask for confirmation, then record that these workers have been checked."""
    answer = ask(model_admin, request, workers, UNFLAG)
    if not isinstance(answer, Answer):
        return answer
    with atomic():
        cleared = fleet.unflag(answer.ids)
        touched = [worker for worker in answer.objects if worker.pk in set(cleared)]
        trace(request, "unflag_worker", touched, answer, message=gettext("Looked at."))
    done = len(cleared)
    text = ngettext(
        "%(count)d worker is no longer flagged.", "%(count)d workers are no longer flagged.", done
    )
    return say(model_admin, request, done, text % {"count": done}, len(answer.objects))


UNFLAG = Question(
    action="unflag",
    title=_("Clear the flag of workers"),
    consequence=_(
        "These workers let a job run past its time, which was then given to somebody else. Say "
        "that they have been looked at: the flag comes back if it happens again. Nothing changes "
        "for their jobs."
    ),
    button=_("Clear their flags"),
    template="admin/ojs/confirm_workers.html",
    details=jobs_in_hand,
)
QUESTIONS = {
    WorkerState.QUIET: about_live_workers(
        action="quiet",
        title=_("Quiet workers"),
        consequence=_(
            "From now on these workers are given no more jobs. They finish the jobs they "
            "hold and stay. Resume undoes this."
        ),
        button=_("Quiet these workers"),
        details=consequences,
    ),
    WorkerState.TERMINATE: about_live_workers(
        action="terminate",
        title=_("Terminate workers"),
        consequence=_(
            "From now on these workers are given no more jobs. Those that can be asked to stop "
            "have their grace period to finish the jobs they hold, and then stop; what is not "
            "finished is recovered and tried again. This cannot be undone."
        ),
        button=_("Terminate these workers"),
        is_destructive=True,
        details=before_they_stop,
    ),
    WorkerState.RUNNING: about_live_workers(
        action="resume",
        title=_("Resume workers"),
        consequence=_(
            "Workers that an operator quieted are given jobs again. One that quieted itself has "
            "its own reasons and is left alone, and so is one that was told to terminate."
        ),
        button=_("Resume these workers"),
        details=about_to_be_drained,
    ),
}
