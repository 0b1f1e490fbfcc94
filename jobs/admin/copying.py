"""Edit a copy of a job and enqueue it: to run a finished job again, or to correct a wrong one."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import DELETION
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request, record_action
from ..errors import OJSError
from ..models import Job, OperatorAction
from ..spec.envelope import envelope
from ..spec.lifecycle import State
from ..spec.lineage import PARENT
from ..spec.validation import SYSTEM_MANAGED, NewJob
from ..store.database import atomic
from . import display
from .job_form import ENQUEUED_ALREADY, FIELDS, JobForm, enqueue, suggest
from .made_once import FIELD, MadeAlready, new_form_id, show_made

LEFT_OUT = SYSTEM_MANAGED | {"id", "scheduled_at", "expires_at", "unique", PARENT}
"""Fields of the original that a copy lacks. A unique policy would find the original."""
COPIED = frozenset({"args", "meta", "attributes", "parent_results"})
"""Columns whose values a copy has too."""
SHOWN = 10
"""Copies that the page of a job names."""


class CopyForm(JobForm):
    discard = forms.BooleanField(
        label=_("Discard the original"),
        required=False,
        help_text=_("Delete it from the dead letter, with its errors, once the copy is enqueued."),
    )
    field_order = (*FIELDS, "delay_until", "discard", "reason")


def may_copy(request: HttpRequest, job: Any) -> bool:
    """Whether this user may enqueue, and sees everything that the copy would contain.

    Args:
        job: as the model admin shows it to this user.
    """
    user: Any = request.user
    return user.has_perm("ojs_jobs.enqueue_job") and job.withheld.isdisjoint(COPIED)


def copy_view(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Show the form for the changes; enqueue the copy and show it."""
    job = model_admin.get_object(request, object_id)
    if job is None:
        raise Http404
    if not model_admin.has_view_permission(request, job) or not may_copy(request, job):
        raise PermissionDenied
    original = envelope(job)
    form = CopyForm(request.POST or None, initial={name: original[name] for name in FIELDS})
    user: Any = request.user
    if job.state != State.DISCARDED or not user.has_perm("ojs_jobs.discard_job"):
        del form.fields["discard"]
    suggest(form, request)
    if form.is_valid():
        try:
            made = _enqueue(request, job, original, form)
        except MadeAlready as again:
            return show_made(model_admin, request, again.made, ENQUEUED_ALREADY)
        if made is not None:
            text = gettext("The copy was enqueued as %(id)s.") % {"id": made.id}
            model_admin.message_user(request, text, messages.SUCCESS)
            site = model_admin.admin_site.name
            page = display.admin_url(site, "ojs_jobs_job", "change", made.id)
            return HttpResponseRedirect(page or request.get_full_path())
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": gettext("Edit a copy"),
        "original": job,
        "form": form,
        FIELD: new_form_id(request),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/ojs/copy.html", context)


def _enqueue(request: HttpRequest, job: Job, original: Any, form: CopyForm) -> NewJob | None:
    """Enqueue the copy; None if it was refused, with the reason in the form."""
    document = {name: value for name, value in original.items() if name not in LEFT_OUT}
    document |= form.document()
    reason = form.cleaned_data["reason"]
    try:
        with atomic():
            made = enqueue(
                request,
                document,
                reason,
                gettext("Enqueued as an edited copy of %(id)s.") % {"id": job.pk},
                selection={"copy_of": str(job.pk)},
                project=job.project,
                parent_results=job.parent_results,
            )
            # It may have been retried or discarded meanwhile: then there is nothing to do.
            if form.cleaned_data.get("discard") and engine.delete_dead([job.pk]):
                record_action(
                    of_request(request),
                    "discard_job",
                    [Job(pk=job.pk, type=job.type)],
                    selection={"copied_as": str(made.id)},
                    reason=reason,
                    message=gettext("Discarded: an edited copy was enqueued as %(id)s.")
                    % {"id": made.id},
                    flag=DELETION,
                )
    except OJSError as refusal:
        form.refuse(refusal)
        return None
    return made


def related(job: Any, site_name: str) -> tuple[SafeString, SafeString]:
    """Links to the original of which this job is a copy, and to its own copies, newest first.

    The record of operators' actions knows them: a job does not.
    """
    key = str(job.pk)
    actions = OperatorAction.objects.filter(
        Q(selection__copy_of=key) | Q(selection__ids=[key], selection__has_key="copy_of"),
        verb="enqueue_job",
    )
    originals, copies = [], []
    for chosen in actions.order_by("-pk").values_list("selection", flat=True)[: SHOWN + 1]:
        if chosen["copy_of"] == key:
            copies += chosen["ids"]
        else:
            originals.append(chosen["copy_of"])
    found = Job.objects.filter(pk__in=[*originals, *copies]).values_list("pk", "state")
    states = {str(pk): state for pk, state in found}
    return _links(site_name, originals, states), _links(site_name, copies, states)


def _links(site_name: str, ids: list[str], states: dict[str, str]) -> SafeString:
    def shown(key: str) -> SafeString:
        if key not in states:
            gone = display.chip("cancelled", gettext("deleted"))
            return format_html("{} {}", display.ident(key), gone)
        return format_html("{} {}", display.job_link(site_name, key), display.chip(states[key]))

    return format_html_join("", "<div>{}</div>", ((shown(key),) for key in ids))
