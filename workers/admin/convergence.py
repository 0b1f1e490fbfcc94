"""Shows the progress of an order: workers that obeyed, and workers not heard."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext, ngettext

from jobs.admin import display
from jobs.admin.words import word
from jobs.models import OperatorAction
from jobs.store import clock

from ..fleet.orders import Convergence, convergence
from ..models import Answer

EVERY = 2
"""Seconds between two refreshes, while something may still change."""


def page(model_admin: Any, request: HttpRequest, action_id: int) -> HttpResponse:
    found = convergence(action_id)
    action = OperatorAction.objects.filter(pk=action_id).first()
    if not found.rows or action is None:
        raise Http404
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": gettext("Progress of the order"),
        "action": action,
        "words": sentence(found),
        "rows": [
            (directive, worker, Answer(answer).label, answer, when)
            for directive, worker, answer, when in found.rows
        ],
        "done": found.followed,
        "refresh": 0 if found.is_over else EVERY,
        "back": _back(request),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/ojs/convergence.html", context)


def _back(request: HttpRequest) -> str:
    url = request.GET.get("back", "")
    return url if url_has_allowed_host_and_scheme(url, allowed_hosts={request.get_host()}) else ""


def sentence(found: Convergence) -> str:
    """ "12 of 14 report quiet, 2 have not been heard for 15 s"."""
    state = word(found.rows[0][0].state)
    sentence = gettext("%(done)d of %(all)d report “%(state)s”") % {
        "done": found.count(Answer.REPORTED),
        "all": len(found.rows),
        "state": state,
    }
    unheard = found.unheard
    if unheard:
        silence = display.span(clock.now() - unheard[0].last_heartbeat_at)
        rest = ngettext(
            "%(count)d has not been heard for %(span)s",
            "%(count)d have not been heard for up to %(span)s",
            len(unheard),
        ) % {"count": len(unheard), "span": silence}
        sentence = f"{sentence}, {rest}"
    relayed = found.count(Answer.RELAYED)
    if relayed:
        sentence += gettext(", relayed to %(count)d that report no state") % {"count": relayed}
    enforced = found.count(Answer.ENFORCED)
    if enforced:
        sentence += gettext(", enforced at fetch for %(count)d") % {"count": enforced}
    gone = found.count(Answer.GONE)
    if gone:
        sentence += gettext(", %(count)d gone before") % {"count": gone}
    replaced = found.count(Answer.SUPERSEDED)
    if replaced:
        sentence += gettext(", %(count)d given another order since") % {"count": replaced}
    return sentence
