"""Maintenance mode: one page that shows whether it is on, and begins and ends it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..access.audit import of_request
from ..engine import maintenance
from ..models import Maintenance
from ..store import clock
from .base import OJSModelAdmin, may
from .notices import maintenance_now, notice
from .queue import PauseForm


class MaintenanceForm(PauseForm):
    refuses_jobs = forms.BooleanField(
        label=_("Refuse new jobs as well"),
        required=False,
        help_text=_("Otherwise jobs can still be enqueued, and wait."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        minutes: Any = self.fields["minutes"]
        minutes.choices = [("", _("until it is ended")), *list(minutes.choices)[1:]]
        self.fields["reason"].help_text = _("Shown on every page while it lasts.")


@admin.register(Maintenance)
class MaintenanceAdmin(OJSModelAdmin):
    """Has no list: there is one switch."""

    has_module_permission = may("ojs_jobs.maintenance")
    has_change_permission = may("ojs_jobs.maintenance")
    has_view_permission = may("ojs_jobs.maintenance")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        if not request.user.has_perm("ojs_jobs.maintenance"):
            raise PermissionDenied
        switch = maintenance.current()
        form = MaintenanceForm(
            request.POST if request.POST.get("verb") == "begin" else None,
            initial=switch and {"reason": switch.reason, "refuses_jobs": switch.refuses_jobs},
        )
        if request.POST.get("verb") == "end":
            maintenance.end(actor=of_request(request), reason=request.POST.get("reason", "")[:500])
            self.message_user(request, gettext("The maintenance has ended."), messages.SUCCESS)
            return HttpResponseRedirect(request.path)
        if form.is_bound and form.is_valid():
            minutes = form.cleaned_data["minutes"]
            maintenance.begin(
                actor=of_request(request),
                reason=form.cleaned_data["reason"],
                until=clock.now() + timedelta(minutes=minutes) if minutes else None,
                refuses_jobs=form.cleaned_data["refuses_jobs"],
            )
            self.message_user(request, gettext("The maintenance has begun."), messages.SUCCESS)
            return HttpResponseRedirect(request.path)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": gettext("Maintenance mode"),
            "form": form,
            "switch": switch,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/ojs/maintenance.html", context)

    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        raise PermissionDenied


@notice
def maintenance_notice(request: HttpRequest) -> str | None:
    """Report that nothing is handed out, why, and until when."""
    if not request.user.has_module_perms("ojs_jobs"):
        return None
    switch = maintenance_now(request)
    return None if switch is None else maintenance.in_words(switch)
