"""Who may only look can change nothing: every address and every action there is, tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import RoutePattern

from jobs.api.authentication import make_key
from jobs.audit import of_shell
from jobs.models import ApiKey, DeadJob, Job, OperatorAction, Queue, RateLimit, Workflow
from tests.browser.walk import prepare
from tests.database import alias, atomic
from tests.ojs_client import MEDIA_TYPE
from tests.operators import APPS, choose, forms
from workers import drain
from workers.models import FleetOperation, OperationStep, Worker

pytestmark = pytest.mark.django_db

OURS = [model for model in admin.site._registry if model._meta.app_label in APPS]
METHODS = ("get", "head", "post", "put", "patch", "delete")
OWN = ("admin/login/", "admin/logout/", "admin/password_change/")
"""A user's own session and password."""
NOT_ADDRESSES = {
    "^ojs(?:/|\\Z)",
    "^flare(?:/|\\Z)",
    "admin/(?P<url>.*)$",
    "admin/^(?P<app_label>auth|django_q|ojs_jobs|ojs_workers)/$",
}
"""Patterns for what is not there, and the list of an app's models."""


@pytest.fixture
def site() -> None:
    """A row of everything, in every state that an action is about."""
    prepare()
    paused = drain.start(["web-9"], actor=of_shell())
    drain.pause(paused.pk, actor=of_shell())


@pytest.fixture
def viewer(site: None) -> Client:
    call_command("createojsgroups", verbosity=0)
    user = User.objects.create_user("viewer", is_staff=True)
    user.groups.add(Group.objects.get(name="OJS viewer"))
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


def snapshot() -> dict[str, Any]:
    """Every row of ours, and of the admin's history and its users."""
    models = [model for app in (*APPS, "auth") for model in apps.get_app_config(app).get_models()]
    rows = {model: list(model.objects.order_by("pk").values()) for model in (*models, LogEntry)}
    for key in rows[ApiKey]:
        key["last_used_at"] = None  # of that, the server takes note by itself
    return {str(model): found for model, found in rows.items()}


def patterns(resolver: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every pattern of the whole site: its text, and what Django knows of it."""
    for pattern in (resolver or get_resolver()).url_patterns:
        text = before + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from patterns(pattern, text)
        else:
            yield text, pattern.pattern


def addresses() -> Iterator[str]:
    """An address for each pattern, of rows that are there."""
    known = {
        "job_id": Job.objects.filter(state="active").latest("pk").pk,
        "worker_id": "web-4",
        "type": "email.send",
        "version": "2.0",
        "workflow_id": Workflow.objects.get(name="etl").pk,
        "key": RateLimit.objects.first(),
        "action_id": OperatorAction.objects.latest("pk").pk,
        "content_type_id": 1,
        "id": 1,
    }
    named = {"queues": "mail", "cron": "daily-report", "job-specs": "email.send"}
    rows = {model._meta.model_name: model._default_manager.first() for model in OURS}
    for text, pattern in patterns():
        if not isinstance(pattern, RoutePattern):
            assert text in NOT_ADDRESSES, text
            continue
        if text.startswith(OWN):
            continue
        parts = text.split("/")
        for place, part in enumerate(parts):
            name = part.strip("<>").rpartition(":")[2] if part.startswith("<") else ""
            if name == "name":
                parts[place] = named[parts[place - 1]]
            elif name == "object_id":
                row = rows.get(parts[place - 1])
                parts[place] = str(quote(row.pk)) if row else "1"
            elif name:
                parts[place] = str(getattr(known[name], "pk", known[name]))
        yield "/" + "/".join(parts)


def test_a_viewer_changes_nothing_at_any_address_by_any_method(viewer):
    before = snapshot()
    urls = list(addresses())
    fields = {field.name: "1" for model in OURS for field in model._meta.fields}
    form = fields | {"_save": "1", "verb": "begin", "post": "yes", "confirmed": "1", "shown": "[]"}

    replies = {}
    for url in urls:
        # To the admin whatever is no POST is a GET.
        for method in ("get", "post") if url.startswith("/admin/") else METHODS:
            sent = form if method == "post" else None
            replies[url, method] = getattr(viewer, method)(url, sent).status_code

    assert len(urls) > 180
    assert {call: status for call, status in replies.items() if status >= 500} == {}
    opened = [url for (url, method), status in replies.items() if (method, status) == ("get", 200)]
    assert len([url for url in opened if url.startswith("/admin/ojs_")]) > 30, "it may look"
    assert snapshot() == before


ACTIONS = [
    (model, action) for model in OURS for action in admin.site._registry[model].actions or ()
]
TYPED = {"max_unavailable": "1", "terminates": "terminate"}


def targets(model: Any, action: str) -> list[Any]:
    """Rows of which some will be changed."""
    if model is Worker:
        taken = OperationStep.objects.filter(is_open=True).values("worker_id")
        return list(Worker.objects.exclude(pk__in=taken))
    return list(model._default_manager.all()[:200])


def test_what_an_administrator_confirms_a_viewer_cannot(viewer, admin_client):
    """The very form that does it, sent by both: first by the one who may not."""
    for model, action in ACTIONS:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        rows = targets(model, action)
        question = choose(admin_client, name, action, *rows)
        form = next(form for form in forms(question) if "confirmed" in form.fields).fields
        form |= TYPED | {"typed": " ".join(str(row) for row in rows)}
        url, before = question.request["PATH_INFO"], snapshot()

        asked = {"action": action, "index": "0", "_selected_action": [row.pk for row in rows]}
        for sent in (asked, asked | {"select_across": "1"}, form):
            assert viewer.post(url, sent).status_code == 403, (name, action)
        assert snapshot() == before, (name, action)

        with atomic():
            assert admin_client.post(url, form).status_code == 302, (name, action)
            assert snapshot() != before, f"{name}.{action} does nothing: then this proves nothing"
            transaction.set_rollback(True, using=alias())


READING = ("observe", "ojs:admin:read", "ojs:data:read")


def calls(key: str) -> dict[tuple[str, str], int]:
    """Try every address of the APIs by every method that writes."""
    job = str(Job.objects.filter(state="active").latest("pk").pk)
    dead = str(DeadJob.objects.latest("pk").pk)
    body = {
        "worker_id": "web-4", "hostname": "h", "pid": 1, "queues": ["mail"], "state": "running",
        "job_id": job, "type": "email.send", "args": [], "name": "new", "cron": "0 * * * *",
        "jobs": [{"type": "email.send", "args": []}], "ids": [dead], "job_ids": [dead],
        "filter": {"state": "discarded"}, "directive": "quiet", "enabled": True, "reason": "x",
        "confirm": True, "checkpoint": {}, "progress": 0.5, "specs": {"a": "v1"},
        "error": {"type": "x", "message": "y"}, "concurrency": 1, "max_depth": 5,
    }  # fmt: skip
    client = Client(
        raise_request_exception=False, headers={"Authorization": f"Bearer {key}"} if key else {}
    )
    found = {}
    for url in list(addresses()):
        if not url.startswith(("/ojs/", "/flare/")):
            continue
        for method in METHODS[2:]:
            reply = getattr(client, method)(url, body, content_type=MEDIA_TYPE)
            found[url, method] = reply.status_code
    return found


@pytest.mark.parametrize("who", ["nobody", "a key that reads"])
def test_who_only_reads_the_api_writes_nothing(site, who):
    key = "" if who == "nobody" else make_key("reader", scopes=list(READING))[1]
    before = snapshot()

    found = calls(key)

    assert len(found) > 300
    assert {call: status for call, status in found.items() if status >= 500} == {}
    assert snapshot() == before
    assert Queue.objects.exists() and FleetOperation.objects.exists()


def test_a_key_that_may_do_everything_does_much_by_the_same_calls(site):
    """Else the test above would prove nothing."""
    _, key = make_key("all")

    done = [call for call, status in calls(key).items() if status < 300]

    assert len(done) > 25, done
