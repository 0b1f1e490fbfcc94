"""Permissions in the admin; refusals for users who may only view are in `test_view_only`."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from jobs.access.permissions import GROUPS
from tests.factories import WorkerFactory
from tests.operators import APPS
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


def test_the_audit_cannot_be_changed(admin_client):
    from jobs.access.audit import of_shell, record_action

    action = record_action(of_shell(), "quiet_worker", kind="worker", count=1)
    page = reverse("admin:ojs_jobs_operatoraction_change", args=[action.pk])

    assert admin_client.get(page).status_code == 200
    assert admin_client.post(page, {"actor": "me"}).status_code == 403
    delete = reverse("admin:ojs_jobs_operatoraction_delete", args=[action.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
