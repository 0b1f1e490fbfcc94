"""Add pages of objects with a secret: a form that is sent again, as on reload, makes nothing more.

The page is answered with the secret, not with a redirect, so that the secret is kept nowhere.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from ..spec.identifiers import parse_uuid, uuid7
from . import display

FIELD = "once"
"""Hidden in the form: an id, new each time the page is opened. What is made is unique by it."""


class MadeAlready(Exception):
    """This form has made its object."""

    def __init__(self, made: Any) -> None:
        self.made = made


class MadeOnce:
    """A model admin whose `save_model()` raises `MadeAlready` if the form has been sent before."""

    made_already: Any
    """Message for who sends the form again."""

    def add_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        this: Any = super()
        try:
            response: HttpResponse = this.add_view(request, *args, **kwargs)
        except MadeAlready as again:
            return self._show_made(request, again.made)
        return response

    def _show_made(self, request: HttpRequest, made: Any) -> HttpResponse:
        this: Any = self
        this.message_user(request, str(self.made_already), messages.WARNING)
        model = f"{this.opts.app_label}_{this.opts.model_name}"
        url = display.admin_url(this.admin_site.name, model, "change", made.pk)
        return HttpResponseRedirect(url)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if kwargs.get("add"):
            context["once"] = form_id(request) or uuid7()
        this: Any = super()
        return this.render_change_form(request, context, *args, **kwargs)


def form_id(request: HttpRequest) -> Any:
    """The id of the form that was sent; None if it has none."""
    return parse_uuid(request.POST.get(FIELD, ""))
