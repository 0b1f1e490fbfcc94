"""Who may do what: every address and every action of the admin, tried by those who may not."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from jobs.api.authentication import make_key
from jobs.models import OperatorAction
from jobs.permissions import GROUPS
from tests.factories import JobFactory, QueueFactory, WorkerFactory
from tests.operators import APPS
from workers import drain
from workers.models import Worker

pytestmark = pytest.mark.django_db

OURS = [model for model in admin.site._registry if model._meta.app_label in APPS]


def member_of(group: str) -> Client:
    call_command("createojsgroups", verbosity=0)
    user = User.objects.create_user(group, is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    client = Client()
    client.force_login(user)
    return client


def everything() -> None:
    from jobs.audit import of_shell

    worker = WorkerFactory(worker_id="w")
    JobFactory(active=True, reserved_by=worker.pk)
    JobFactory(dead=True)
    QueueFactory(name="mail")
    make_key("ci")
    drain.start([worker.pk], actor=of_shell())


def snapshot() -> dict[str, Any]:
    models = [model for app in APPS for model in apps.get_app_config(app).get_models()]
    rows = {model: list(model.objects.order_by("pk").values()) for model in (*models, LogEntry)}
    return {str(model): found for model, found in rows.items()}


def addresses(pattern: Any, keys: list[str]) -> list[str]:
    """Where a pattern of a model's pages leads: to the row there is, or to the newest order."""
    if not pattern.name:  # Django's redirect from a page's older address
        return []
    known = {"object_id": keys, "action_id": OperatorAction.objects.values_list("pk", flat=True)}
    wanted = [known[name] for name in pattern.pattern.converters]
    return [reverse(f"admin:{pattern.name}", args=args) for args in product(*wanted)]


@pytest.mark.parametrize("model", OURS, ids=lambda model: model._meta.model_name)
def test_who_may_only_look_can_change_nothing(model):
    everything()
    client, before = member_of("OJS viewer"), snapshot()
    model_admin, opts = admin.site._registry[model], model._meta
    name = f"admin:{opts.app_label}_{opts.model_name}"
    row = model_admin.model._default_manager.first()
    keys = [] if row is None else [str(row.pk)]

    urls = [url for pattern in model_admin.get_urls() for url in addresses(pattern, keys)]
    assert reverse(f"{name}_changelist") in urls
    fields = {field.name: "1" for field in opts.fields} | {"_save": "1", "verb": "begin"}
    for url in urls:
        client.post(url, fields)
        client.post(url, {"post": "yes"})
        assert client.get(url).status_code < 500, url
    for action in [*(model_admin.actions or ()), "delete_selected"]:
        sent = {"action": action, "index": "0", "_selected_action": keys}
        for form in (
            sent,
            sent | {"select_across": "1"},
            sent | {"confirmed": "1", "shown": str(keys).replace("'", '"')},
        ):
            reply = client.post(reverse(f"{name}_changelist"), form)
            is_refused = reply.status_code == 403 or action == "delete_selected"
            assert is_refused, (action, reply)

    assert snapshot() == before


def test_every_action_names_the_permission_it_takes():
    for model in OURS:
        model_admin = admin.site._registry[model]
        for name in model_admin.actions or ():
            permissions = getattr(model_admin, name).allowed_permissions
            assert permissions and "view" not in permissions, (model, name)


def test_the_groups_are_made_once_and_brought_up_to_date():
    call_command("createojsgroups", verbosity=0)
    operators = Group.objects.get(name="OJS operator")
    operators.permissions.remove(operators.permissions.get(codename="quiet_worker"))

    call_command("createojsgroups", verbosity=0)

    held = {
        name: set(Group.objects.get(name=name).permissions.values_list("codename", flat=True))
        for name in GROUPS
    }
    viewer, operator, everything = (held[name] for name in GROUPS)
    assert viewer < operator < everything
    assert all(name.startswith("view_") for name in viewer)
    assert "view_job_args" not in operator
    assert {"quiet_worker", "drain_fleet", "retry_job", "maintenance"} <= operator
    assert {"purge_queue", "manage_keys", "view_job_args"} <= everything - operator


def test_an_operator_may_quiet_and_may_not_make_keys():
    client, worker = member_of("OJS operator"), WorkerFactory()
    sent = {"action": "quiet", "index": "0", "_selected_action": [worker.pk]}

    url = reverse("admin:ojs_workers_worker_changelist")
    assert client.post(url, sent).status_code == 200
    assert client.get(reverse("admin:ojs_jobs_apikey_add")).status_code == 403
    assert Worker.objects.get().directive == ""


def test_nobody_changes_the_audit(admin_client):
    from jobs.audit import of_shell, record_action

    action = record_action(of_shell(), "quiet_worker", kind="worker", count=1)
    page = reverse("admin:ojs_jobs_operatoraction_change", args=[action.pk])

    assert admin_client.get(page).status_code == 200
    assert admin_client.post(page, {"actor": "me"}).status_code == 403
    delete = reverse("admin:ojs_jobs_operatoraction_delete", args=[action.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
