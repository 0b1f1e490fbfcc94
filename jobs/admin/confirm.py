"""Actions that ask for confirmation: what will be affected, what will happen, and why.

An action calls `ask()` twice. The first time it gets a page to show. When that page is submitted,
it gets an `Answer` with exactly the objects that were shown, even if the list has changed since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
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

from ..access.audit import of_request, record_action
from ..store.database import atomic

Text = str | Promise
"""Text that is translated when it is shown."""

MOST = 1000
"""Objects that one confirmation covers; the page gives the number of the rest, for another one."""


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("Kept in the history of each of them."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


TYPED_ABOVE = 1000
"""The operator types the number of objects to confirm an action on more than this."""
BATCH = 1000


class TypedForm(ReasonForm):
    """Asks for the number of objects as well, so that thousands are not confirmed by reflex."""

    typed = forms.IntegerField(
        label=_("How many"),
        localize=False,
        help_text=_("Type the number of jobs above, without separators, to confirm."),
        widget=forms.TextInput(
            attrs={"class": "vTextField", "autocomplete": "off", "inputmode": "numeric"}
        ),
    )
    expected = 0

    def clean_typed(self) -> int:
        if self.cleaned_data["typed"] != self.expected:
            raise ValidationError(gettext("This is not the number of jobs above."))
        return self.expected


DESTRUCTIVE: set[str] = set()
"""Names of actions that cannot be undone, whose buttons look different."""


@dataclass(frozen=True)
class Question:
    """The contents of the confirmation page."""

    action: str
    """Name of the action that asks."""
    title: Text
    consequence: Text
    """The consequence, and when it takes effect."""
    button: Text
    is_destructive: bool = False
    form_class: type[forms.Form] = ReasonForm
    template: str = "admin/ojs/confirm.html"
    details: Callable[[Sequence[Any]], dict[str, Any]] = lambda objects: {}
    """Further information about the objects, for this question's template."""
    describe: Callable[[Any], str] = str
    """One object in a line of the page."""
    most: int = MOST
    """Objects that one confirmation covers."""
    columns: tuple[str, ...] = ()
    """Columns that are read of the objects; empty means all."""
    states: tuple[str, ...] = ()
    """States of jobs that the action changes; others are skipped, and the page says so."""
    concerns: Callable[[Any], Any] = lambda objects: objects
    """Narrows a queryset to the objects that the action can affect; others are omitted."""
    left_out: Callable[[int, int], str] = lambda count, rest: ""
    """Text for the page, given how many objects are affected and how many are omitted."""

    def __post_init__(self) -> None:
        if self.is_destructive:
            DESTRUCTIVE.add(self.action)

    def form(self, count: int, data: Any = None) -> forms.Form:
        if count <= TYPED_ABOVE:
            return self.form_class(data)
        form = TypedForm(data)
        form.expected = count
        return form


def in_order(buttons: dict[str, Text], may: Collection[str]) -> list[tuple[str, Text, bool]]:
    """Name, label and whether it is destructive of each permitted button; these come last."""
    found = [(name, label, name in DESTRUCTIVE) for name, label in buttons.items() if name in may]
    return sorted(found, key=lambda button: button[2])


@dataclass(frozen=True)
class Answer:
    """The operator's confirmation: the objects and the reason."""

    objects: Sequence[Any]
    reason: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """All values of the form."""
    selection: dict[str, Any] = field(default_factory=dict)
    """How they were chosen, for the record: the list's filter, if there was one."""
    left: Sequence[Any] = ()
    """Objects that were what they should become already."""

    @property
    def ids(self) -> list[Any]:
        return [obj.pk for obj in self.objects]


def ask(
    model_admin: Any, request: HttpRequest, selected: QuerySet[Any], question: Question
) -> Answer | HttpResponse:
    """Return the operator's answer, or the response to give until there is one."""
    is_confirmed = "confirmed" in request.POST
    if is_confirmed:
        # Not `selected`: the list's filters may no longer match what was shown.
        keys = _shown(model_admin, request, question.most)
        selected = model_admin.get_queryset(request).filter(pk__in=keys)
    if question.columns:
        selected = selected.only(*question.columns)
    concerned = question.concerns(selected)
    objects = list(concerned[: question.most + 1])
    if not objects:
        text = gettext("None of these is there any more: they were changed or deleted meanwhile.")
        if not is_confirmed:
            text = gettext("There was nothing to do.")
        model_admin.message_user(request, text, messages.WARNING)
        return back(request)
    # The number that was shown: some of the objects may be gone.
    count = len(keys) if is_confirmed else min(len(objects), question.most)
    form = question.form(count, request.POST if is_confirmed else None)
    if form.is_valid():
        data = form.cleaned_data
        return Answer(objects, data.get("reason", ""), data, _selection(request))
    note = ""
    if concerned is not selected and not is_confirmed:
        is_whole = len(objects) <= question.most
        count = len(objects) if is_whole else concerned.order_by().count()
        rest = selected.order_by().count() - count
        note = question.left_out(count, rest) if rest else ""
    return _page(model_admin, request, objects, form, question, note)


def _selection(request: HttpRequest) -> dict[str, Any]:
    return {"filter": dict(request.GET.items())} if request.GET else {}


def _shown(model_admin: Any, request: HttpRequest, most: int) -> list[Any]:
    """Return the keys of the objects that the page showed."""
    try:
        texts = list(json.loads(request.POST.get("shown", "[]")))
    except (ValueError, TypeError, RecursionError):
        raise BadRequest("These are no keys of shown objects.") from None
    return read_keys(model_admin, texts)[:most]


def read_keys(model_admin: Any, texts: Sequence[Any]) -> list[Any]:
    """Return the keys of objects that a form has named.

    Raises:
        BadRequest: no object can have one of them.
    """
    field = model_admin.model._meta.pk
    try:
        keys = [field.to_python(text) for text in texts]
        for key in keys:
            field.run_validators(key)
    except (ValueError, TypeError, ValidationError):
        keys = [None]
    if any(key is None or "\x00" in str(key) for key in keys):
        raise BadRequest("The form names an object that there cannot be.")
    return keys


def _page(
    model_admin: Any,
    request: HttpRequest,
    objects: list[Any],
    form: forms.Form,
    question: Question,
    note: str = "",
) -> HttpResponse:
    shown, is_partial = objects[: question.most], len(objects) > question.most
    context = {
        **model_admin.admin_site.each_context(request),
        **question.details(shown),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": question.title,
        "question": question,
        "form": form,
        "objects": shown,
        "lines": map(question.describe, shown),
        "left_out": note,
        "most": question.most if is_partial else None,
        # One field for all of them: Django refuses forms with more than a thousand.
        "shown": json.dumps([str(obj.pk) for obj in shown]),
        "skipped": _skipped(shown, question.states),
        "first": shown[0].pk,
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "back": _back_url(request),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, question.template, context)


def _skipped(objects: Sequence[Any], states: Sequence[str]) -> list[tuple[str, int]]:
    """How many jobs are in states that the action skips, by state."""
    counts = Counter(obj.state for obj in objects if obj.state not in states) if states else {}
    return sorted(counts.items())


def _back_url(request: HttpRequest) -> str:
    """Where the action started: the object's page if the form names it, else the filtered list."""
    url = request.POST.get("back", "")
    if url_has_allowed_host_and_scheme(url, allowed_hosts={request.get_host()}):
        return url
    return request.get_full_path()


def back(request: HttpRequest) -> HttpResponseRedirect:
    return HttpResponseRedirect(_back_url(request))


def back_to_list(request: HttpRequest) -> HttpResponseRedirect:
    """Return to the list: the page of what was deleted, where it may have started, is gone."""
    url = _back_url(request)
    return HttpResponseRedirect(url if url.partition("?")[0] == request.path else request.path)


def say(model_admin: Any, request: HttpRequest, done: int, text: str, asked: int) -> HttpResponse:
    """Report how many objects were changed and how many were not; return to where it started."""
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


def switch(
    model_admin: Any,
    request: HttpRequest,
    selected: QuerySet[Any],
    question: Question,
    verb: Callable[..., bool],
) -> HttpResponse:
    """Ask, then call `verb` for each operation, which returns whether it changed; say how many."""
    answer = ask(model_admin, request, selected, question)
    if not isinstance(answer, Answer):
        return answer
    actor = of_request(request)
    done = sum(verb(pk, actor=actor, reason=answer.reason) for pk in answer.ids)
    text = ngettext("%(count)d operation: done.", "%(count)d operations: done.", done)
    return say(model_admin, request, done, text % {"count": done}, len(answer.objects))


def trace(
    request: HttpRequest, verb: str, objects: Sequence[Any], answer: Answer, **how: Any
) -> Any:
    """Record that the operator did `verb` to `objects`, if there were any; return the entry.

    See `audit.record_action`.
    """
    if not objects:
        return None
    how = {"selection": answer.selection, "reason": answer.reason} | how
    return record_action(of_request(request), verb, objects, **how)


def in_batches(
    request: HttpRequest,
    verb: str,
    answer: Answer,
    run: Callable[[list[Any]], Collection[Any]],
    **how: Any,
) -> int:
    """Call `run` with batches of keys, which returns those it changed; return how many were.

    Up to `BATCH` objects are changed in one transaction, with an entry in each object's history.
    For more there is one entry in the audit, made before the first batch, so that after a crash the
    completed part is attributed to the operator.
    """
    objects = sorted(answer.objects, key=lambda obj: obj.pk)
    if len(objects) <= BATCH:
        with atomic():
            changed = set(run([obj.pk for obj in objects]))
            trace(request, verb, [obj for obj in objects if obj.pk in changed], answer, **how)
        return len(changed)
    action = record_action(
        of_request(request),
        verb,
        objects,
        selection=answer.selection,
        reason=answer.reason,
        history=False,
    )
    done = 0
    for start in range(0, len(objects), BATCH):
        with atomic():
            done += len(run([obj.pk for obj in objects[start : start + BATCH]]))
    type(action)._default_manager.filter(pk=action.pk).update(count=done)
    return done
