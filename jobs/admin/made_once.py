"""Forms that make something, or a new secret for it: sent again, as on reload or by a second click,
they make nothing more.

A page with a secret is the answer to the form, not behind a redirect: so it is kept nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.translation import gettext_lazy as _

from ..spec.identifiers import parse_uuid, uuid7
from . import display

FIELD = "once"
"""Hidden in the form. For a new object, an id that is new each time the page is opened: what is
made is unique by it. For another secret, a mark of the present one."""


class MadeAlready(Exception):
    """This form has made its object."""

    def __init__(self, made: Any) -> None:
        self.made = made


class MadeOnce:
    """A model admin whose `save_model()` raises `MadeAlready` if the form has been sent before."""

    made_already: Any
    """Message for who sends the form again."""
    renewed_already = _(
        "It has been given a new secret since that page was opened, and a secret is shown only "
        "once. If you do not have it, give it another one."
    )
    """The same of the form for another secret."""

    def add_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        this: Any = super()
        try:
            response: HttpResponse = this.add_view(request, *args, **kwargs)
        except MadeAlready as again:
            return self._show_made(request, again.made, self.made_already)
        return response

    def _show_made(self, request: HttpRequest, made: Any, text: Any) -> HttpResponse:
        return show_made(self, request, made, text)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if kwargs.get("add"):
            context[FIELD] = new_form_id(request)
        this: Any = super()
        return this.render_change_form(request, context, *args, **kwargs)


def form_id(request: HttpRequest) -> Any:
    """The id of the form that was sent; None if it has none."""
    return parse_uuid(request.POST.get(FIELD, ""))


def new_form_id(request: HttpRequest) -> Any:
    """The id for the form on the page: a form that was refused keeps its own."""
    return form_id(request) or uuid7()


def show_made(model_admin: Any, request: HttpRequest, made: Any, text: Any) -> HttpResponse:
    """Say that the form was sent before; show what it has made to a user who may see that."""
    site = model_admin.admin_site
    model_admin.message_user(request, str(text), messages.WARNING)
    url = display.page_url(site, request, type(made), "change", made.pk)
    return HttpResponseRedirect(url or reverse("admin:index", current_app=site.name))


def marked(secret_of: Callable[[Any], str]) -> Callable[[Sequence[Any]], dict[str, str]]:
    """The `details` of a question for another secret, given what tells the present one."""
    return lambda objects: {FIELD: _mark(secret_of(objects[0]))}


def is_renewed(request: HttpRequest, secret: str) -> bool:
    """Whether this is not the secret that the form, as it was opened, is to replace."""
    return not constant_time_compare(request.POST.get(FIELD, ""), _mark(secret))


def _mark(secret: str) -> str:
    return salted_hmac("ojs.made_once", secret).hexdigest()
