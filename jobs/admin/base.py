"""Base classes of our model admins: pages, limits, buttons, refusals."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import wraps
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ERROR_FLAG
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.forms import DateTimeField
from django.http import HttpRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_noop

from ..access.redaction import may_see, redact_quotes
from ..errors import StorageUnavailable
from ..spec.timestamps import to_utc
from ..store import standby
from . import display
from .confirm import in_order, read_keys
from .display import NOTHING
from .paging import CappedPaginator, FiguresChangeList


def chosen_moment(value: datetime) -> datetime:
    """Return what a form has as its time zone's, as the database has it.

    Raises:
        ValidationError: it is not within the years 1 to 9999 there.
    """
    try:
        return to_utc(value)
    except ValueError:
        raise ValidationError(DateTimeField.default_error_messages["invalid"]) from None


def may(permission: str) -> Any:
    """Return Django's permission check for an action: `has_quiet_permission = may("…")`."""

    def has_permission(self: Any, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(permission)

    return has_permission


def without_nul(view: Any) -> Any:
    """Return the view, with 400 for an address with a NUL character, which no database finds."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        given = (text for name, values in request.GET.lists() for text in (name, *values))
        if any("\x00" in text for text in (request.path, *given)):
            raise BadRequest("The address contains a NUL character.")
        return view(request, *args, **kwargs)

    return checked


def without_storage(view: Any) -> Any:
    """Return the view, with a message if the storage of large arguments is away for a change."""

    @wraps(view)
    def attempted(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return view(request, *args, **kwargs)
        except StorageUnavailable as problem:
            if request.method != "POST":
                raise
            # It is marked for translation where it is raised.
            messages.error(request, gettext(problem.message))
            return HttpResponseRedirect(request.get_full_path())

    return attempted


LOGGED_OUT = gettext_noop("You are no longer logged in. Nothing was done: log in, and do it again.")


def without_login(view: Any) -> Any:
    """Return the view, with a message for users who send a form after they were logged out."""

    @wraps(view)
    def attempted(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        response = view(request, *args, **kwargs)
        if request.method == "POST" and not request.user.is_authenticated:
            messages.warning(request, gettext(LOGGED_OUT), fail_silently=True)
        return response

    return attempted


def with_reader(view: Any, site: Any) -> Any:
    """Return the view, with links only to pages that the user may open."""

    @wraps(view)
    def shown(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with display.read_by(site, request):
            return _rendered(view(request, *args, **kwargs))

    return shown


class PagesModelAdmin(admin.ModelAdmin):
    """A model admin whose pages, Django's and its own, answer any address and any change, and link
    only to pages that their reader may open."""

    @property
    def urls(self) -> Any:
        patterns = super().urls
        for pattern in patterns:
            view = without_login(without_storage(without_nul(pattern.callback)))
            pattern.callback = with_reader(view, self.admin_site)
        return patterns


class OJSModelAdmin(PagesModelAdmin):
    """Nothing is added or deleted by hand: rows come from clients."""

    change_list_template = "admin/ojs/change_list.html"
    change_form_template = "admin/ojs/change_form.html"
    paginator = CappedPaginator
    show_full_result_count = False
    # Facets count the whole table once for each choice of each filter.
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 100
    empty_value_display = NOTHING

    sensitive: ClassVar[tuple[str, ...]] = ()
    """JSON columns that not every user sees in full (`OJS["REDACT_KEYS"]`)."""
    lookups: ClassVar[tuple[str, ...]] = ()
    """Columns by which links narrow the list, besides those of its filters."""
    buttons: ClassVar[dict[str, Any]] = {}
    """Actions offered on an object's own page, and the labels of their buttons."""

    class Media:
        css: ClassVar[dict[str, Any]] = {"all": ["ojs/admin.css"]}
        js = ("ojs/admin.js", "ojs/live.js", "ojs/keys.js")

    def allowed(self, obj: Any) -> Collection[str]:
        """Return the buttons that make sense for `obj` in its present state."""
        return ()

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the object as this user may see it."""
        obj = super().get_object(request, object_id, from_field)
        if obj is not None:
            obj.is_redacted = not may_see(request.user)
            # The columns of which a part is hidden from this user.
            obj.withheld = set()
            for name in self.sensitive if obj.is_redacted else ():
                whole = getattr(obj, name)
                setattr(obj, name, redact_quotes(whole))
                if getattr(obj, name) != whole:
                    obj.withheld.add(name)
        return obj

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        # A URL such as `?secret__startswith=h` would let a user guess what no page shows.
        column = lookup.partition("__")[0]
        if column in self._columns - self._narrowed_by(request):
            return False
        return super().lookup_allowed(lookup, value, request)

    @property
    def _columns(self) -> set[str]:
        return {field.name for field in self.opts.get_fields()}

    def _narrowed_by(self, request: HttpRequest) -> set[str]:
        """The names of the list's filters: columns, and parameters of their own."""
        names = {self.opts.pk.name, self.date_hierarchy or "", *self.lookups}
        for each in self.get_list_filter(request):
            column: Any = each[0] if isinstance(each, tuple) else each
            names.add(column if isinstance(column, str) else column.parameter_name)
        return names

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return FiguresChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        # To a user who may not run the action, Django answers only "No action selected."
        forbidden = set(self.actions or ()) - set(self.get_actions(request))
        if forbidden.intersection(request.POST.getlist("action")):
            raise PermissionDenied
        if request.method == "GET" and ERROR_FLAG in request.GET:
            text = format_html(
                '{} <a href="{}">{}</a>',
                gettext("The address named a filter that does not exist: nothing is listed."),
                request.path,
                gettext("List everything"),
            )
            self.message_user(request, text, messages.WARNING)
        if request.method == "POST" and request.POST.get("select_across") != "1":
            read_keys(self, request.POST.getlist(ACTION_CHECKBOX_NAME))
        # Most listed objects cannot be "selected to change".
        title = {"title": capfirst(self.opts.verbose_name_plural)}
        return super().changelist_view(request, title | (extra_context or {}))

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> Any:
        # Django's method has had this parameter since 6.1, and its pages pass it.
        given = {} if action_location is None else {"action_location": action_location}
        actions = super().get_actions(request, **given)
        # Django's own action would delete row by row, past the engine.
        actions.pop("delete_selected", None)
        return actions

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        obj = kwargs.get("obj")
        if obj is not None:
            may = self.get_actions(request).keys() & set(self.allowed(obj))
            context["buttons"] = in_order(self.buttons, may)
        return super().render_change_form(request, context, *args, **kwargs)


def from_standby(view: Any) -> Any:
    """Return the view with a page that is viewed read from a standby, where there is one."""

    def read(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if request.method not in ("GET", "HEAD"):
            return view(request, *args, **kwargs)
        return standby.answer(lambda: _rendered(view(request, *args, **kwargs)))

    return read


def _rendered(response: Any) -> Any:
    # Lists make their queries while they are rendered.
    return response.render() if isinstance(response, TemplateResponse) else response


class ReadOnlyModelAdmin(OJSModelAdmin):
    """Objects can only be viewed; operators change them through actions.

    Their lists, which may be long, are read from a standby.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.changelist_view = from_standby(self.changelist_view)  # type: ignore[method-assign]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Otherwise Django would let the user save the form. Each action names its own permission.
        return False
