"""API keys: make one, see it once, revoke it. What is stored cannot be turned back into a key."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..api.authentication import forget_keys, make_key
from ..audit import of_request, record_action
from ..database import atomic
from ..models import ApiKey, Scope
from . import display
from .base import OJSModelAdmin, may
from .confirm import Answer, Question, ask, say, trace


class ApiKeyForm(forms.ModelForm):
    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        choices=Scope.choices,
        help_text=_("As few as will do."),
        widget=forms.CheckboxSelectMultiple,
    )

    class Meta:
        model = ApiKey
        fields: ClassVar[list[str]] = ["name", "scopes", "project", "worker_id", "label"]


class UsableFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (("usable", _("usable")), ("revoked", _("revoked")))

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() is None:
            return queryset
        return queryset.filter(revoked_at__isnull=self.value() == "usable")


@admin.register(ApiKey)
class ApiKeyAdmin(OJSModelAdmin):
    form = ApiKeyForm
    list_display = (
        "name",
        "beginning",
        "state",
        "scope_list",
        "project",
        "worker_id",
        "label",
        "used",
        "created",
    )
    list_filter = (UsableFilter,)
    search_fields = ("name", "prefix", "project", "worker_id")
    ordering = ("name", "id")
    actions = ("revoke",)
    buttons: ClassVar[dict[str, Any]] = {"revoke": _("Revoke")}
    readonly_fields = ("beginning", "state", "used", "created")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        sections: list[Any] = [
            (None, {"fields": ("name", "scopes", "project", "worker_id", "label")})
        ]
        if obj is not None:
            known = ("beginning", "state", "used", "created")
            sections.append((_("Use"), {"fields": known}))
        return sections

    has_manage_permission = may("ojs_jobs.manage_keys")
    has_add_permission = may("ojs_jobs.manage_keys")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_manage_permission(request)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # After a key was made there is nothing but the key to see.
        context |= {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().render_change_form(request, context, *args, **kwargs)

    def allowed(self, obj: Any) -> Collection[str]:
        return ("revoke",) if obj.is_usable else ()

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            # Only what was edited: the key may have been used or revoked since.
            changed = {name: form.cleaned_data[name] for name in form.changed_data}
            with atomic():
                ApiKey.objects.filter(pk=obj.pk).update(**changed)
                self._record(request, obj, changed)
            forget_keys()
            return
        with atomic():
            made, obj.fresh_key = make_key(**form.cleaned_data)
            obj.pk, obj.prefix = made.pk, made.prefix
            self._record(request, obj, {"made": obj.name})

    def _record(self, request: HttpRequest, key: ApiKey, what: dict[str, Any]) -> None:
        # The form's own history entry tells the rest.
        record_action(
            of_request(request),
            "manage_keys",
            kind="apikey",
            count=1,
            selection={"ids": [str(key.pk)]} | what,
            history=False,
        )

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: Any = None) -> Any:
        """Show the key: in this answer and nowhere else, not in a message that a cookie carries."""
        return TemplateResponse(
            request,
            "admin/ojs/api_key_made.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "media": self.media,
                "title": gettext("The key “%(name)s” was made") % {"name": obj.name},
                "key": obj.fresh_key,
                "original": obj,
            },
        )

    @admin.display(description=_("begins with"))
    def beginning(self, key: ApiKey) -> SafeString:
        return display.code(f"{key.prefix}…")

    @admin.display(description=_("state"))
    def state(self, key: ApiKey) -> SafeString:
        if key.is_usable:
            return display.chip("active", gettext("usable"))
        return display.chip("discarded", gettext("revoked"))

    @admin.display(description=_("scopes"))
    def scope_list(self, key: ApiKey) -> str | SafeString:
        return display.chips(key.scopes)

    @admin.display(description=_("last used"), ordering="last_used_at")
    def used(self, key: ApiKey) -> str | SafeString:
        return display.when(key.last_used_at) if key.last_used_at else gettext("never")

    @admin.display(description=_("made"), ordering="created_at")
    def created(self, key: ApiKey) -> str | SafeString:
        return display.when(key.created_at)

    @admin.action(description=_("Revoke selected keys"), permissions=["manage"])
    def revoke(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, REVOKE)
        if not isinstance(answer, Answer):
            return answer
        with atomic():
            usable = ApiKey.objects.filter(pk__in=answer.ids, revoked_at__isnull=True)
            keys = list(usable.select_for_update())
            done = usable.update(revoked_at=clock.now())
            trace(request, "manage_keys", keys, answer, message=gettext("Revoked."))
        forget_keys()
        text = ngettext("%(count)d key was revoked.", "%(count)d keys were revoked.", done)
        return say(self, request, done, text % {"count": done}, len(answer.objects))


REVOKE = Question(
    action="revoke",
    title=_("Revoke API keys"),
    consequence=_(
        "Requests with these keys are refused, in every server process within seconds. Whoever "
        "still needs access needs a new key: there is no way back."
    ),
    button=_("Revoke these keys"),
    is_destructive=True,
)
