"""The admin's pages in another site: another prefix, another AdminSite, hashed files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.management import call_command
from django.urls import reverse

from jobs.access.audit import of_shell, record_action
from jobs.http.authentication import make_key
from jobs.models import DeadJob, Job, Queue
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, WorkerFactory
from tests.operators import APPS
from workers.fleet import drain
from workers.models import Worker

pytestmark = pytest.mark.django_db

OURS = [model for model in admin.site._registry if model._meta.app_label in APPS]
ACTIONS = {Job: "cancel", DeadJob: "retry", Queue: "purge", Worker: "drain"}
HREF = re.compile(r"""(?:href|action|src)="([^"]*)\"""")
MANIFEST = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"


@pytest.fixture
def rows():
    worker = WorkerFactory(worker_id="worker_255/a", labels=["blue"])
    JobFactory(active=True, reserved_by=worker.pk)
    QueueFactory(name="mail")
    JobErrorFactory(job=JobFactory(dead=True))
    make_key("ci")
    drain.start([worker.pk], actor=of_shell())
    record_action(of_shell(), "pause_queue", kind="queue", count=1)


def pages(client: Any, site: str = "admin") -> dict[str, Any]:
    """Every page of ours, and the first page of an action on each list."""
    found = {}
    for model in OURS:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        known = {pattern.name for pattern in admin.site._registry[model].get_urls()}
        row = model._default_manager.first()
        for page in ("changelist", "change", "copy"):
            keys = [] if page == "changelist" else [row and quote(row.pk)]
            if f"{name}_{page}" in known and None not in keys:
                url = reverse(f"admin:{name}_{page}", args=keys, current_app=site)
                found[url] = client.get(url)
        if model in ACTIONS:
            url = reverse(f"admin:{name}_changelist", current_app=site)
            sent = {"action": ACTIONS[model], "index": "0", "_selected_action": row.pk}
            found[f"{url} {ACTIONS[model]}"] = client.post(url, sent)
    return found


def links(reply: Any) -> list[str]:
    return HREF.findall(reply.content.decode())


def test_pages_stay_in_the_admin_site_they_were_opened_in(admin_client, settings, rows):
    settings.ROOT_URLCONF = "tests.other_process"

    found = pages(admin_client, "control")

    assert len(found) > 20
    for url, reply in found.items():
        assert url.startswith("/shop/control/") and reply.status_code == 200, url
        assert [link for link in links(reply) if link.startswith("/admin/")] == [], url


def test_every_file_of_every_page_is_there_under_its_hashed_name(
    admin_client, settings, rows, tmp_path
):
    settings.STATIC_ROOT = str(tmp_path)
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": MANIFEST}}
    call_command("collectstatic", interactive=False, verbosity=0)

    files = set()
    for url, reply in pages(admin_client).items():
        assert reply.status_code == 200, url
        files |= {link for link in links(reply) if link.startswith(settings.STATIC_URL)}

    ours = {file for file in files if "/ojs/" in file}
    assert len(ours) >= 4
    for file in files:
        assert (Path(tmp_path) / file.removeprefix(settings.STATIC_URL)).exists(), file
        assert re.search(r"\.[0-9a-f]{12}\.", file), file
