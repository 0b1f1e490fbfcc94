"""Every page of the project, found through the admin's own patterns, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.urls import reverse

from jobs.access.audit import of_shell
from jobs.engine import maintenance
from jobs.models import CronJob, DeadJob, Job, Queue, Workflow
from tests.operators import APPS
from workers.chores import reaper
from workers.models import FleetOperation, Worker

from .records import give_orders, keep
from .scene import draw

OURS = [model for model in admin.site._registry if model._meta.app_label in APPS]
NO_PAGES = ("delete", "csv", "live", "about", "preview", "find", "clear")
"""Pages refused to every user, a file, a stream, what scripts ask for, and an answer to POST."""
MADE_BY_HAND = (
    "apikey",
    "jobschema",
    "jobspec",
    "tenant",
    "pool",
    "job",
    "cronjob",
    "mark",
    "alertrule",
    "bulkoperation",
    "webhooksubscription",
)
"""Models whose rows are added in a form; for others it is refused."""


@dataclass(frozen=True)
class Rows:
    """Which row of a model is opened, if it matters, and which order."""

    chosen: dict[Any, Any]
    order: int


def prepare() -> Rows:
    """A whole site at work."""
    scene = draw()
    keep()
    chosen = {
        Job: scene.waiting,
        DeadJob: DeadJob.objects.get(pk=scene.dead.pk),
        FleetOperation: scene.operation,
        Worker: Worker.objects.get(pk="web-4"),
        CronJob: CronJob.objects.get(pk="daily-report"),
        Workflow: Workflow.objects.get(name="etl"),
        Queue: Queue.objects.get(pk="images"),
    }
    return Rows(chosen, give_orders())


def pages(rows: Rows, site: str = "admin") -> Iterator[tuple[str, str]]:
    """Name and URL of each page that answers GET."""
    yield "index", reverse("admin:index", current_app=site)
    for app in APPS:
        yield app, reverse("admin:app_list", args=[app], current_app=site)
    for model in OURS:
        row = rows.chosen.get(model) or model._default_manager.first()
        prefix = f"{model._meta.app_label}_{model._meta.model_name}_"
        for pattern in admin.site._registry[model].get_urls():
            if not pattern.name:  # Django's redirect from a page's older address
                continue
            name = pattern.name.removeprefix(prefix)
            if name in NO_PAGES or (name == "add" and model._meta.model_name not in MADE_BY_HAND):
                continue
            if model._meta.model_name == "maintenance" and name != "changelist":
                continue  # there is a single switch
            known = {"object_id": row and quote(row.pk), "action_id": rows.order}
            keys = [known[key] for key in pattern.pattern.converters]
            assert None not in keys, f"the scene has no {model.__name__}"
            url = reverse(f"admin:{pattern.name}", args=keys, current_app=site)
            yield f"{model._meta.model_name}-{name}", url


# One question of each kind; the template identifies them.
QUESTIONS = {
    "confirm-workers": ("ojs_workers_worker", "drain"),
    "confirm-jobs": ("ojs_jobs_deadjob", "retry"),
    "confirm-queues": ("ojs_jobs_queue", "purge"),
    "confirm-crons": ("ojs_jobs_cronjob", "run_now"),
    "confirm": ("ojs_jobs_apikey", "revoke"),
}
ASK = """
([model, action]) => {
    const boxes = document.querySelectorAll("#result_list .action-select");
    boxes.forEach(box => { box.checked = true; });
    document.querySelector("select[name=action]").value = action;
    document.querySelector("#changelist-form").submit();
}
"""


def visit(page: Any) -> Iterator[str]:
    """Open each page in turn, also what is asked before an action, and what is said during
    maintenance; yield its name."""
    rows = prepare()
    for name, url in pages(rows):
        reaper.sign_of_life("web-1:41")  # otherwise each page warns that no reaper runs
        assert page.goto(url).status == 200, url
        yield name
    for name, (model, action) in QUESTIONS.items():
        page.goto(reverse(f"admin:{model}_changelist"))
        page.evaluate(ASK, [model, action])
        page.locator("[name=confirmed]").wait_for(state="attached")
        yield name
    maintenance.begin(actor=of_shell(), reason="The database moves")
    for model in ("maintenance", "queue"):
        page.goto(reverse(f"admin:ojs_jobs_{model}_changelist"))
        yield f"in-maintenance-{model}"
