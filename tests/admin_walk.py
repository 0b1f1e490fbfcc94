"""Every URL and action of the site, found by its own patterns, with all rows before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import RoutePattern

from jobs import engine
from jobs.access.audit import of_shell
from jobs.models import ApiKey, Job, Listener, OperatorAction, RateLimit, Workflow
from jobs.models.audit import REFUSED
from tests.browser.walk import prepare
from tests.operators import APPS, choose, forms
from workers.fleet import drain
from workers.models import (
    Directive,
    OperationStep,
    WebhookDelivery,
    WebhookSubscription,
    Worker,
)

OURS = [model for model in admin.site._registry if model._meta.app_label in APPS]
OWN = ("admin/login/", "admin/logout/", "admin/password_change/")
"""Pages for a user's own session and password."""
NOT_ADDRESSES = {
    "^ojs(?:/|\\Z)",
    "^flare(?:/|\\Z)",
    "^flare/v1(?:/|\\Z)",
    "admin/(?P<url>.*)$",
    "admin/^(?P<app_label>auth|django_q|ojs_jobs|ojs_workers)/$",
}
"""Patterns for unknown paths, and the list of an app's models."""
ACTIONS = [
    (model, action) for model in OURS for action in admin.site._registry[model].actions or ()
]
TYPED = {
    "max_unavailable": "1",
    "terminates": "terminate",
    "overlap": "24",
    "mode": "strict",
}
SHOWS = ("rotate",)
"""Actions that answer with a page that is not shown anywhere else."""


def make_site() -> None:
    """A row of every model, in every state that an action is about."""
    prepare()
    paused = drain.start(["web-9"], actor=of_shell())
    drain.pause(paused.pk, actor=of_shell())
    stopped = engine.bulk_operations.start("retry", {"queue": "no such"}, actor=of_shell())
    engine.bulk_operations.stop(stopped.pk, actor=of_shell())


def snapshot() -> dict[str, Any]:
    """Every row of our models, and of the admin's history and users."""
    models = [model for app in (*APPS, "auth") for model in apps.get_app_config(app).get_models()]
    rows = {model: list(model.objects.order_by("pk").values()) for model in (*models, LogEntry)}
    # Updated by the server itself.
    for key in rows[ApiKey]:
        key |= {"last_used_at": None, "last_used_address": "", "last_used_protocol": ""}
    rows[Listener] = []
    rows[OperatorAction] = [row for row in rows[OperatorAction] if row["verb"] != REFUSED]
    return {str(model): found for model, found in rows.items()}


def patterns(resolver: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every pattern of the whole site: its text and its callback."""
    for pattern in (resolver or get_resolver()).url_patterns:
        text = before + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from patterns(pattern, text)
        else:
            yield text, pattern.pattern


def addresses() -> Iterator[str]:
    """A URL for each pattern, with existing rows."""
    yield from (url for _, url in named_addresses())


def named_addresses() -> Iterator[tuple[str, str]]:
    """Pairs of pattern and URL."""
    known = {
        "job_id": Job.objects.filter(state="active").latest("pk").pk,
        "worker_id": "web-4",
        "type": "email.send",
        "version": "2.0",
        "workflow_id": Workflow.objects.get(name="etl").pk,
        "key": RateLimit.objects.first(),
        "tenant_id": "acme",
        "action_id": Directive.objects.filter(action_id__isnull=False).latest("pk").action_id,
        "subscription_id": WebhookSubscription.objects.latest("pk").name,
        "delivery_id": WebhookDelivery.objects.latest("pk").name,
        "content_type_id": 1,
        "id": 1,
    }
    named = {
        "queues": "mail",
        "cron": "daily-report",
        "crons": "daily-report",
        "job-specs": "email.send",
        "schemas": "email.send",
        "pools": "night",
    }
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
        yield text, "/" + "/".join(parts)


def targets(model: Any) -> list[Any]:
    """Rows, some of which each action changes."""
    if model is Worker:
        taken = OperationStep.objects.filter(is_open=True).values("worker_id")
        return list(Worker.objects.exclude(pk__in=taken))
    return list(model._default_manager.all()[:200])


def chosen(model: Any, action: str) -> dict[str, Any]:
    """The form that a list sends when an action is chosen for rows."""
    return {"action": action, "index": "0", "_selected_action": [row.pk for row in targets(model)]}


def confirmation(administrator: Client, model: Any, action: str) -> tuple[str, dict[str, Any]]:
    """The URL and the form by which an administrator performs an action."""
    rows = targets(model)
    name = f"{model._meta.app_label}_{model._meta.model_name}"
    question = choose(administrator, name, action, *rows)
    form = next(form for form in forms(question) if "confirmed" in form.fields).fields
    form |= TYPED | {"typed": " ".join(str(row) for row in rows)}
    return question.request["PATH_INFO"], form
