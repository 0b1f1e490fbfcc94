"""Clear text of an encoded job on a page of its own, from the codec server (OJS encryption §9.4).

The admin has no keys and does not use them where it could: what may be seen, by whom, is decided
and recorded in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from ..access.audit import of_request, record_action
from ..access.redaction import may_see
from ..conf import ojs_settings
from ..models import Job
from ..payloads import server
from ..payloads.chain import is_closed
from ..spec.encoded import REFERENCE, is_encoded
from ..spec.identifiers import parse_uuid
from . import display


def closed_values(job: Job) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return a label, the value, and the meta that says how it is encoded, for each of a job."""
    found = [(_("Arguments"), value, job.meta) for value in job.args if _is_closed(value)]
    found += [
        (f"meta.{name}", value, {}) for name, value in (job.meta or {}).items() if is_encoded(value)
    ]
    found += [
        (_("Results before it"), value, {})
        for value in job.parent_results or ()
        if is_encoded(value)
    ]
    if is_encoded(job.result):
        found.append((_("Result"), job.result, {}))
    for error in job.errors.order_by("pk"):
        if is_encoded(error.details):
            label = _("Error of attempt %(number)d") % {"number": error.attempt}
            found.append((label, error.details, {}))
    return found


def _is_closed(value: Any) -> bool:
    # Whether a reference is one of this site's, the codec server decides.
    return is_closed(value) or (type(value) is dict and REFERENCE in value)


def may_decode(request: HttpRequest) -> bool:
    return bool(ojs_settings.CODEC_SERVER_URL) and may_see(request.user)


def clear_view(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Ask the codec server, record that, and show what it answers."""
    job = model_admin.get_queryset(request).filter(pk=parse_uuid(object_id)).first()
    if job is None:
        raise Http404
    if not model_admin.has_view_permission(request, job) or not may_decode(request):
        raise PermissionDenied
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    closed = closed_values(job)
    payloads = [server.payload_of(value, meta) for _label, value, meta in closed]
    try:
        values = server.ask(payloads, user=request.user) if payloads else []
    except server.NoClearText as problem:
        model_admin.message_user(request, str(problem), messages.ERROR)
        return HttpResponseRedirect(model_page(model_admin, job))
    record_action(of_request(request), "view_job_args", [job], message=_("Saw it in clear."))
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": _("In clear"),
        "original": job,
        "values": [
            (label, display.json_block(value))
            for (label, _value, _meta), value in zip(closed, values, strict=True)
        ],
    }
    request.current_app = model_admin.admin_site.name
    response = TemplateResponse(request, "admin/ojs/clear_text.html", context)
    response["Cache-Control"] = "no-store"
    return response


def model_page(model_admin: Any, job: Job) -> str:
    site = model_admin.admin_site.name
    return display.admin_url(site, f"ojs_jobs_{model_admin.opts.model_name}", "change", job.pk)
