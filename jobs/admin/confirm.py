"""An action that asks before it acts: what will be touched, what will happen, and why.

An action calls `ask()` twice. The first time it gets a page to show. When that page is sent back,
it gets an `Answer` with exactly the objects that were shown, whatever the list has become since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..audit import of_request, record_action

Text = str | Promise
"""Translated when it is shown."""

MOST = 1000
"""Objects that one confirmation covers; the rest is named as a number, to be asked about again."""


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("Kept in the history of each of them."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


@dataclass(frozen=True)
class Question:
    """What the confirmation page says."""

    action: str
    """Name of the action that asks."""
    title: Text
    consequence: Text
    """What will happen, and when."""
    button: Text
    is_destructive: bool = False
    form_class: type[forms.Form] = ReasonForm
    template: str = "admin/ojs/confirm.html"
    details: Callable[[Sequence[Any]], dict[str, Any]] = lambda objects: {}
    """What else the template of this question shows of the objects."""


@dataclass(frozen=True)
class Answer:
    """Yes: to these objects, for this reason."""

    objects: Sequence[Any]
    reason: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """Everything the form asked."""
    selection: dict[str, Any] = field(default_factory=dict)
    """How they were chosen, for the record: the list's filter, if there was one."""

    @property
    def ids(self) -> list[Any]:
        return [obj.pk for obj in self.objects]


def ask(
    model_admin: Any, request: HttpRequest, selected: QuerySet[Any], question: Question
) -> Answer | HttpResponse:
    """Return the operator's answer, or the response to give until there is one."""
    form = question.form_class()
    if "confirmed" in request.POST:
        form = question.form_class(request.POST)
        # Not `selected`: the list's filters may no longer match what was shown.
        selected = model_admin.get_queryset(request).filter(pk__in=_shown(model_admin, request))
    objects = list(selected[: MOST + 1])
    if not objects:
        model_admin.message_user(request, gettext("There was nothing to do."), messages.WARNING)
        return back(request)
    if form.is_valid():
        data = form.cleaned_data
        return Answer(objects, data.get("reason", ""), data, _selection(request))
    return _page(model_admin, request, objects, form, question)


def _selection(request: HttpRequest) -> dict[str, Any]:
    return {"filter": dict(request.GET.items())} if request.GET else {}


def _shown(model_admin: Any, request: HttpRequest) -> list[Any]:
    """The keys of the objects that the page had shown."""
    key = model_admin.model._meta.pk
    try:
        keys = [key.to_python(text) for text in json.loads(request.POST.get("shown", "[]"))]
    except (ValueError, TypeError, ValidationError):
        raise BadRequest("These are no keys of shown objects.") from None
    return keys[:MOST]


def _page(
    model_admin: Any,
    request: HttpRequest,
    objects: list[Any],
    form: forms.Form,
    question: Question,
) -> HttpResponse:
    shown, is_partial = objects[:MOST], len(objects) > MOST
    context = {
        **model_admin.admin_site.each_context(request),
        **question.details(shown),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": question.title,
        "question": question,
        "form": form,
        "objects": shown,
        "most": MOST if is_partial else None,
        # One field however many there are: Django refuses forms of more than a thousand.
        "shown": json.dumps([str(obj.pk) for obj in shown]),
        "first": shown[0].pk,
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "back": _back_url(request),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, question.template, context)


def _back_url(request: HttpRequest) -> str:
    """Where the action was started: the object's page if it said so, else the list as filtered."""
    url = request.POST.get("back", "")
    if url_has_allowed_host_and_scheme(url, allowed_hosts={request.get_host()}):
        return url
    return request.get_full_path()


def back(request: HttpRequest) -> HttpResponseRedirect:
    return HttpResponseRedirect(_back_url(request))


def say(model_admin: Any, request: HttpRequest, done: int, text: str, asked: int) -> HttpResponse:
    """Tell what was done, and of how many nothing was; go back to where it was started."""
    left = asked - done
    if left > 0:
        rest = ngettext(
            "%(count)d was left as it is: its state does not allow it.",
            "%(count)d were left as they are: their states do not allow it.",
            left,
        ) % {"count": left}
        text = f"{text} {rest}"
    model_admin.message_user(request, text, messages.SUCCESS if done else messages.WARNING)
    return back(request)


def trace(
    request: HttpRequest, verb: str, objects: Sequence[Any], answer: Answer, **how: Any
) -> None:
    """Write down that the operator did `verb` to `objects`, if there were any.

    See `audit.record_action`.
    """
    if objects:
        how = {"selection": answer.selection, "reason": answer.reason} | how
        record_action(of_request(request), verb, objects, **how)
