"""Workflows: their jobs, their progress, why they failed; cancel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import engine
from ..access.audit import of_request
from ..access.redaction import redact_quotes
from ..errors import Conflict, NotFound
from ..http.workflow_document import Tree, summaries, workflow_document
from ..models import Workflow
from ..store.database import atomic
from . import display
from .base import ReadOnlyModelAdmin, may
from .confirm import Answer, Question, ask, say, trace
from .graph import DRAWN, draw


@admin.register(Workflow)
class WorkflowAdmin(ReadOnlyModelAdmin):
    """Whole workflows, newest first; those inside others are on the page of the outermost."""

    list_display = ("title", "type", "shown_state", "done", "created", "lasted")
    list_filter = ("state", "type")
    search_fields = ("name",)
    ordering = ("-id",)
    sortable_by = ()
    actions = ("cancel",)
    buttons: ClassVar[dict[str, Any]] = {"cancel": _("Cancel")}
    has_cancel_permission = may("ojs_jobs.cancel_workflow")
    sensitive = ("steps", "compensations", "parent_results", "problem")
    fieldsets = (
        (None, {"fields": ("identity", "name", "type", "shown_state", "done", "around")}),
        (_("Jobs"), {"fields": ("picture", "jobs")}),
        (_("Timeline"), {"fields": ("created_moment", "started_moment", "finished_moment")}),
        (_("What went wrong"), {"fields": ("shown_problem",)}),
        (_("Document"), {"classes": ("collapse",), "fields": ("raw",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Workflow]:
        found: QuerySet[Workflow] = super().get_queryset(request)
        if (
            request.resolver_match
            and request.resolver_match.url_name == "ojs_jobs_workflow_changelist"
        ):
            found = found.filter(parent__isnull=True)
            found = found.defer("steps", "compensations", "parent_results")
        return found

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return [
            part
            for part in self.fieldsets
            if "shown_problem" not in part[1]["fields"] or (obj is not None and obj.problem)
        ]

    def add_figures(self, workflows: Sequence[Any]) -> None:
        for workflow, summary in zip(workflows, summaries(workflows), strict=True):
            workflow.completed = summary["steps_completed"]

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        workflow = super().get_object(request, object_id, from_field)
        if workflow is not None:
            self.add_figures([workflow])
            # Read once for a page; of a large one, what is drawn.
            most = DRAWN if workflow.job_count > MANY else None
            workflow.tree = SimpleLazyObject(lambda: Tree(workflow, most=most))
        return workflow

    def allowed(self, obj: Any) -> Collection[str]:
        return () if obj.is_decided else ("cancel",)

    @admin.display(description=_("workflow"))
    def title(self, workflow: Workflow) -> str:
        return workflow.name or f"…{str(workflow.pk)[-12:]}"

    @admin.display(description=_("id"))
    def identity(self, workflow: Workflow) -> SafeString:
        return display.code(str(workflow.pk))

    @admin.display(description=_("state"))
    def shown_state(self, workflow: Workflow) -> SafeString:
        return display.chip(workflow.state)

    @admin.display(description=_("done"))
    def done(self, workflow: Any) -> str:
        return f"{workflow.completed} / {workflow.size}"

    @admin.display(description=_("part of"))
    def around(self, workflow: Workflow) -> str | SafeString:
        if workflow.parent_id is None:
            return display.NOTHING
        model = "ojs_jobs_workflow"
        url = display.admin_url(self.admin_site.name, model, "change", workflow.root_id)
        return display.link(url, str(workflow.root_id))

    @admin.display(description=_("created"))
    def created(self, workflow: Workflow) -> str | SafeString:
        return display.when(workflow.created_at)

    @admin.display(description=_("took"))
    def lasted(self, workflow: Workflow) -> str:
        if workflow.finished_at is None:
            return display.NOTHING
        return display.span(workflow.finished_at - workflow.created_at)

    @admin.display(description=_("picture"))
    def picture(self, workflow: Any) -> SafeString:
        return draw(workflow.tree, self.admin_site.name)

    @admin.display(description=_("all of them"))
    def jobs(self, workflow: Workflow) -> str | SafeString:
        url = display.admin_url(self.admin_site.name, "ojs_jobs_job", "changelist")
        query = urlencode({"workflow__id__exact": str(workflow.pk)})
        return display.link(url and f"{url}?{query}", gettext("Jobs of this workflow"))

    @admin.display(description=_("created"))
    def created_moment(self, workflow: Workflow) -> str | SafeString:
        return display.moment(workflow.created_at)

    @admin.display(description=_("first job started"))
    def started_moment(self, workflow: Workflow) -> str | SafeString:
        return display.moment(workflow.started_at)

    @admin.display(description=_("finished"))
    def finished_moment(self, workflow: Workflow) -> str | SafeString:
        return display.moment(workflow.finished_at)

    @admin.display(description=_("problem"))
    def shown_problem(self, workflow: Workflow) -> str | SafeString:
        return display.json_block(workflow.problem)

    @admin.display(description=_("document"))
    def raw(self, workflow: Any) -> str | SafeString:
        if workflow.job_count > MANY:
            return gettext("Too large to be shown here; ask the API for it.")
        document = workflow_document(workflow, workflow.tree)
        return display.json_block(redact_quotes(document) if workflow.is_redacted else document)

    @admin.action(description=_("Cancel selected workflows"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Workflow]) -> Any:
        answer = ask(self, request, queryset, CANCEL)
        if not isinstance(answer, Answer):
            return answer
        done = sum(self._cancel(request, item, answer) for item in answer.objects)
        text = ngettext(
            "%(count)d workflow was cancelled.", "%(count)d workflows were cancelled.", done
        )
        return say(self, request, done, text % {"count": done}, len(answer.objects))

    def _cancel(self, request: HttpRequest, workflow: Workflow, answer: Answer) -> bool:
        try:
            with atomic():
                engine.cancel_workflow(workflow.pk, actor=of_request(request))
                trace(request, "cancel_workflow", [workflow], answer, message=gettext("Cancelled."))
        except (Conflict, NotFound):
            return False  # it ended, or was deleted, while the operator was confirming
        return True


MANY = 500
CANCEL = Question(
    action="cancel",
    title=_("Cancel workflows"),
    consequence=_(
        "Jobs of these workflows that nobody runs yet will never run. Jobs that are running may "
        "finish. Workflows that have ended are left alone. This cannot be undone."
    ),
    button=_("Cancel these workflows"),
    is_destructive=True,
)
