"""API keys: create one, see it once, give it a new secret, revoke it.

A key cannot be recovered from what is stored.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..access.audit import of_request, record_action
from ..access.redaction import may_see
from ..conf import protocol_of, protocols
from ..http.authentication import (
    NotRotated,
    digest,
    forget_keys,
    make_key,
    rotate_key,
    secret_for,
)
from ..models import ApiKey, Scope
from ..store import clock
from ..store.database import atomic
from . import display
from .base import OJSModelAdmin, chosen_moment, may
from .confirm import Answer, Question, ReasonForm, ask, back, say, trace
from .made_once import MadeAlready, MadeOnce, form_id, is_renewed, marked

GRANTED = ("name", "scopes", "project", "worker_id", "label")


def may_give(user: Any, scope: str) -> bool:
    """Whether a user may make a key with this scope: not one that sees more than the user."""
    return scope != Scope.ADMIN_ARGS or may_see(user)


class ApiKeyForm(forms.ModelForm):
    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        choices=Scope.choices,
        help_text=_("As few as will do."),
        widget=forms.CheckboxSelectMultiple,
    )

    class Meta:
        model = ApiKey
        fields: ClassVar[list[str]] = [*GRANTED, "expires_at"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "expires_at" in self.fields:
            # Django labels the pair, neither of the two.
            boxes = getattr(self.fields["expires_at"].widget, "widgets", ())
            for box, label in zip(boxes, (_("Date"), _("Time")), strict=False):
                box.attrs["aria-label"] = label

    def clean_expires_at(self) -> datetime | None:
        date: datetime | None = self.cleaned_data["expires_at"]
        if date is not None:
            date = chosen_moment(date)
        # An existing key may be ended this way: its clients are then refused with this date.
        if self.instance.pk is None and date is not None and date <= clock.now():
            raise ValidationError(gettext("This time is in the past."))
        return date


class RotationForm(ReasonForm):
    overlap = forms.TypedChoiceField(
        label=_("The present secret works for"),
        choices=[
            ("0", _("no longer, because it has leaked")),
            ("1", _("1 hour")),
            ("24", _("24 hours")),
            ("168", _("7 days")),
            ("720", _("30 days")),
        ],
        initial="24",
        coerce=lambda hours: timedelta(hours=int(hours)),
        help_text=_("How long clients may keep using the old secret."),
    )
    end_earlier = forms.BooleanField(
        label=_("End the previous secret now"),
        required=False,
        help_text=_("Needed while the last rotation is not over: a key has at most two secrets."),
    )

    field_order = ("overlap", "end_earlier", "reason")


class UsableFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return (
            ("usable", _("usable")),
            ("expiring", _("expires within 14 days")),
            ("in_rotation", _("has two secrets")),
            ("expired", _("expired")),
            ("revoked", _("revoked")),
        )

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() not in dict(self.lookup_choices):
            return queryset
        return getattr(queryset, str(self.value()))()


class LastProtocolFilter(admin.SimpleListFilter):
    title = _("last used protocol")
    parameter_name = "last_used_protocol"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(protocol.name, protocol.title) for protocol in protocols()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(last_used_protocol=self.value()) if self.value() else queryset


@admin.register(ApiKey)
class ApiKeyAdmin(MadeOnce, OJSModelAdmin):
    form = ApiKeyForm
    made_already = _(
        "This key was made already, and is shown only once. If you do not have it, give it a new "
        "secret."
    )
    list_display = (
        "name",
        "beginning",
        "state",
        "scope_list",
        "project",
        "worker_id",
        "label",
        "expires",
        "used",
        "used_by",
        "created",
    )
    list_filter = (UsableFilter, LastProtocolFilter)
    search_fields = ("name", "prefix", "previous_prefix", "project", "worker_id")
    ordering = ("name", "id")
    actions = ("rotate", "revoke")
    buttons: ClassVar[dict[str, Any]] = {"rotate": _("New secret"), "revoke": _("Revoke")}
    readonly_fields = (
        "beginning",
        "state",
        "used",
        "used_by",
        "created",
        "rotated",
        "earlier",
        "earlier_until",
        "earlier_used",
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        sections: list[Any] = [(None, {"fields": (*GRANTED, "expires_at")})]
        if obj is not None:
            known = ("beginning", "state", "used", "used_by", "created")
            sections.append((_("Use"), {"fields": known}))
        if obj is not None and obj.rotated_at is not None:
            rotation = ("rotated", "earlier", "earlier_until", "earlier_used")
            sections.append((_("Previous secret"), {"fields": rotation}))
        return sections

    def get_form(self, request: HttpRequest, obj: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return a form with the scopes that this user may give, and those that the key has."""
        form = super().get_form(request, obj, *args, **kwargs)
        if "scopes" in form.base_fields:
            scopes: Any = deepcopy(form.base_fields["scopes"])
            held = obj.scopes if obj is not None else ()
            scopes.choices = [
                (scope, label)
                for scope, label in Scope.choices
                if scope in held or may_give(request.user, scope)
            ]
            form.base_fields["scopes"] = scopes
        return form

    has_manage_permission = may("ojs_jobs.manage_keys")
    has_add_permission = may("ojs_jobs.manage_keys")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_manage_permission(request)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # After a key is created, the page shows nothing but the key.
        context |= {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().render_change_form(request, context, *args, **kwargs)

    def allowed(self, obj: Any) -> Collection[str]:
        if obj.revoked_at is not None:
            return ()
        return ("rotate", "revoke") if obj.is_usable else ("revoke",)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            # Only what was edited: the key may have been used or revoked since.
            changed = {name: form.cleaned_data[name] for name in form.changed_data}
            with atomic():
                ApiKey.objects.filter(pk=obj.pk).update(**changed)
                self._record(request, obj, changed)
            forget_keys()
            return
        form_sent = form_id(request)
        # No two keys have the same secret: a form that is sent twice at once makes one key.
        key = secret_for(f"{request.user.pk}:{form_sent}") if form_sent else ""
        same = ApiKey.objects.with_secrets([digest(key)])
        if made := same.first():
            raise MadeAlready(made)
        try:
            with atomic():
                made, obj.fresh_key = make_key(key=key, **form.cleaned_data)
                obj.pk, obj.prefix = made.pk, made.prefix
                self._record(request, obj, {"made": obj.name})
        except IntegrityError:
            made = same.first()
            if made is None:
                raise
            raise MadeAlready(made) from None

    def _record(self, request: HttpRequest, key: ApiKey, what: dict[str, Any]) -> None:
        what = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in what.items()
        }
        # The form's own history entry records the rest.
        record_action(
            of_request(request),
            "manage_keys",
            kind="apikey",
            count=1,
            selection={"ids": [str(key.pk)]} | what,
            history=False,
        )

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: Any = None) -> Any:
        title = gettext("The key “%(name)s” was made") % {"name": obj.name}
        return self._show(request, obj, obj.fresh_key, title)

    def _show(self, request: HttpRequest, obj: Any, key: str, title: str, note: str = "") -> Any:
        """Show a key: only in this response, never in a message, which a cookie would carry."""
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            "admin/ojs/api_key_made.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "media": self.media,
                "title": title,
                "note": note,
                "key": key,
                "original": obj,
            },
        )

    @admin.display(description=_("begins with"))
    def beginning(self, key: ApiKey) -> SafeString:
        return display.code(f"{key.prefix}…")

    @admin.display(description=_("state"))
    def state(self, key: ApiKey) -> SafeString:
        if key.revoked_at is not None:
            return display.chip("discarded", gettext("revoked"))
        if key.is_expired:
            return display.chip("discarded", gettext("expired"))
        if key.is_expiring:
            return display.chip("retryable", gettext("expires soon"))
        return display.chip("active", gettext("usable"))

    @admin.display(description=_("expires"), ordering="expires_at")
    def expires(self, key: ApiKey) -> str | SafeString:
        return display.when(key.expires_at)

    @admin.display(description=_("rotated"))
    def rotated(self, key: ApiKey) -> str | SafeString:
        return display.moment(key.rotated_at)

    @admin.display(description=_("begins with"))
    def earlier(self, key: ApiKey) -> SafeString:
        return display.code(f"{key.previous_prefix}…")

    @admin.display(description=_("works until"))
    def earlier_until(self, key: ApiKey) -> str | SafeString:
        return display.moment(key.previous_until)

    @admin.display(description=_("last used"))
    def earlier_used(self, key: ApiKey) -> str | SafeString:
        """When the earlier secret was last used: its clients have not changed over yet."""
        if key.previous_used_at is None:
            return gettext("not since the rotation")
        return display.moment(key.previous_used_at)

    @admin.display(description=_("scopes"))
    def scope_list(self, key: ApiKey) -> str | SafeString:
        return display.chips(key.scopes)

    @admin.display(description=_("last used"), ordering="last_used_at")
    def used(self, key: ApiKey) -> str | SafeString:
        return display.when(key.last_used_at) if key.last_used_at else gettext("never")

    @admin.display(description=_("by"), ordering="last_used_address")
    def used_by(self, key: ApiKey) -> str:
        """Address and protocol of its last use."""
        if not key.last_used_protocol:
            return key.last_used_address
        return f"{key.last_used_address} ({protocol_of(key.last_used_protocol).title})"

    @admin.display(description=_("made"), ordering="created_at")
    def created(self, key: ApiKey) -> str | SafeString:
        return display.when(key.created_at)

    @admin.action(description=_("Give the selected key a new secret"), permissions=["manage"])
    def rotate(self, request: HttpRequest, queryset: Any) -> Any:
        answer = ask(self, request, queryset, ROTATE)
        if not isinstance(answer, Answer):
            return answer
        (key, *_others) = answer.objects
        if not all(may_give(request.user, scope) for scope in key.scopes):
            text = gettext("You may not give this key's scopes, so you may not get its secret.")
            self.message_user(request, text, messages.ERROR)
            return back(request)
        if is_renewed(request, key.digest):
            return self._show_made(request, key, self.renewed_already)
        try:
            with atomic():
                secret = rotate_key(
                    key, overlap=answer.data["overlap"], end_earlier=answer.data["end_earlier"]
                )
                key.refresh_from_db()
                until = key.previous_until
                selection = {"rotated": key.name, "earlier_until": until.isoformat()}
                trace(
                    request,
                    "manage_keys",
                    [key],
                    answer,
                    selection=answer.selection | selection,
                    message=gettext("A new secret was made."),
                )
        except NotRotated as problem:
            self.message_user(request, problem.message, messages.ERROR)
            return back(request)
        title = gettext("The key “%(name)s” has a new secret") % {"name": key.name}
        note = gettext("The previous one, %(prefix)s…, works until %(until)s.") % {
            "prefix": key.previous_prefix,
            "until": display.absolute(until),
        }
        if not answer.data["overlap"]:
            note = gettext("The previous one, %(prefix)s…, no longer works.") % {
                "prefix": key.previous_prefix
            }
        return self._show(request, key, secret, title, note)

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


ROTATE = Question(
    action="rotate",
    title=_("New secret of an API key"),
    consequence=_(
        "The new secret is shown once, on the next page. The key keeps its name, scopes and "
        "bindings; its present secret works beside the new one for as long as you say, so that "
        "its clients can change over one after the other."
    ),
    button=_("Make a new secret"),
    form_class=RotationForm,
    details=marked(lambda key: key.digest),
    most=1,
)
REVOKE = Question(
    action="revoke",
    title=_("Revoke API keys"),
    consequence=_(
        "Requests with these keys are refused, in every server process within seconds. Whoever "
        "still needs access needs a new key. This cannot be undone."
    ),
    button=_("Revoke these keys"),
    is_destructive=True,
)
