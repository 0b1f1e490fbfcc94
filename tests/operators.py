"""An operator at the admin, without scripts: opens pages, fills in and submits their forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from jobs.access.permissions import permissions_of

APPS = ("ojs_jobs", "ojs_workers")

UNSTORABLE = {
    "NUL": r'"\u0000"',
    "surrogate": r'"\ud800"',
    "64 bits": "99999999999999999999",
    "53 bits": "9007199254740993",
    "infinity": "1e400",
    "nested": "[" * 250 + "]" * 250,
}
"""JSON that cannot be stored without loss, or not at all: the API refuses it in every document."""


def staff(*permissions: str, username: str = "ops") -> Client:
    """A logged-in staff member with only these permissions: `staff("quiet_worker")`."""
    user = User.objects.create_user(username, is_staff=True)
    found = Permission.objects.filter(codename__in=permissions, content_type__app_label__in=APPS)
    assert len(found) == len(permissions), "there is no such permission"
    user.user_permissions.set(found)
    client = Client()
    client.force_login(user)
    return client


def viewer() -> Client:
    """A staff member who may view everything in the project, and change nothing."""
    views = Permission.objects.filter(
        codename__startswith="view_", content_type__app_label__in=APPS
    )
    return staff(*views.values_list("codename", flat=True), username="viewer")


def operator(*more: str, username: str = "ops") -> Client:
    """A staff member who may view everything in the project and do what an operator does."""
    client = staff(*more, username=username)
    user = User.objects.get(username=username)
    user.user_permissions.add(*permissions_of("OJS operator"))
    return client


def list_of(model: str) -> str:
    return reverse(f"admin:{model}_changelist")


def choose(client: Client, model: str, action: str, *objects: Any, query: str = "") -> Any:
    """Tick objects in the list of `model` and choose an action; return the response."""
    return client.post(
        list_of(model) + query,
        {"action": action, "index": "0", "_selected_action": [obj.pk for obj in objects]},
    )


def answer(client: Client, page: Any, **fields: Any) -> Any:
    """Fill in the confirmation on `page`, submit it, and follow the redirect."""
    form = next(form for form in forms(page) if "confirmed" in form.fields)
    url = form.action or page.request["PATH_INFO"] + _query(page)
    return client.post(url, form.fields | fields, follow=True)


def confirm(client: Client, model: str, action: str, *objects: Any, **fields: Any) -> Any:
    """Choose an action and confirm it."""
    page = choose(client, model, action, *objects)
    assert page.status_code == 200, page
    return answer(client, page, **fields)


def press(client: Client, page: Any, action: str) -> Any:
    """Press the button of an object's page that runs `action`."""
    form = next(form for form in forms(page) if form.fields.get("action") == action)
    return client.post(form.action, form.fields)


def buttons(page: Any) -> list[str]:
    """The actions that an object's page has buttons for."""
    key = str(page.context["original"].pk)
    return [
        form.fields["action"]
        for form in forms(page)
        if "back" in form.fields and form.fields.get("_selected_action") == key
    ]


def messages(page: Any) -> list[str]:
    return [str(message) for message in page.context["messages"]]


def _query(page: Any) -> str:
    query = page.request["QUERY_STRING"]
    return f"?{query}" if query else ""


@dataclass
class Form:
    action: str
    fields: dict[str, str] = field(default_factory=dict)


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        named = dict(attrs)
        if tag == "form":
            self.found.append(Form(named.get("action") or ""))
        is_filled_in = named.get("name") and named.get("type") not in ("checkbox", "submit")
        if tag == "input" and self.found and is_filled_in:
            self.found[-1].fields[named["name"]] = named.get("value") or ""


def forms(page: Any) -> list[Form]:
    parser = _Forms()
    parser.feed(page.content.decode())
    return parser.found
