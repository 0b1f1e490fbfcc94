"""The audit in the admin: actions, actors and targets, in the reader's language."""

from __future__ import annotations

import ast

import pytest
from django.urls import reverse
from django.utils import translation

from jobs.access import audit
from jobs.access.audit import Actor
from jobs.admin.verbs import VERBS
from jobs.models import OperatorAction, Source
from tests.factories import JobFactory, WorkerFactory, ago
from tests.operators import operator
from tests.translations import ROOT
from workers.fleet import orders as fleet
from workers.lifecycle import WorkerState
from workers.models import Worker

pytestmark = pytest.mark.django_db
URL = "/admin/ojs_jobs/operatoraction/"


def written() -> set[str]:
    """The verbs in calls that record an action."""
    found = set()
    for app in ("jobs", "workers"):
        for path in (ROOT / app).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and _name(node.func) in TRACES:
                    found |= {
                        text.value
                        for argument in node.args
                        for text in ast.walk(argument)
                        if isinstance(text, ast.Constant) and isinstance(text.value, str)
                    }
    return {text for text in found if text.isidentifier() and "_" in text[1:] and text[0] != "_"}


TRACES = {"record_action", "trace", "audit", "_audit", "_trace"}


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_verb_has_words():
    assert {"purge_queue", "enable_cron", "register_spec"} <= written()
    assert written() - VERBS.keys() == set()


def body(page: str) -> str:
    return page.split("<tbody>")[1].split("</tbody>")[0]


def test_an_action_is_shown_and_found_in_the_language_of_the_reader():
    common = {"actor": "ops", "source": "admin", "count": 2}
    OperatorAction.objects.create(verb="quiet_worker", target_kind="worker", **common)
    OperatorAction.objects.create(verb="purge_queue", target_kind="queue", **common)
    OperatorAction.objects.create(verb="of_a_host", target_kind="lorry", **common)
    client = operator()

    with translation.override("de"):
        everything = client.get(URL, HTTP_ACCEPT_LANGUAGE="de").content.decode()
        purges = client.get(f"{URL}?verb=purge_queue", HTTP_ACCEPT_LANGUAGE="de").content.decode()

    rows = body(everything)
    assert "Worker ruhen lassen" in rows and "of_a_host" in rows and "lorry" in rows
    rows = body(purges)
    assert "Jobs von Warteschlangen gelöscht" in rows and "of_a_host" not in rows


def make(verb="quiet_worker", kind="worker", **changes):
    common = {"actor": "ops", "source": "admin", "count": 1}
    return OperatorAction.objects.create(verb=verb, target_kind=kind, **common | changes)


@pytest.mark.parametrize("word", ["web_1/a", "blau-ü", "WEB_1", "web_1/a ops"])
def test_an_action_is_found_by_what_was_acted_on(admin_client, word):
    found = make(selection={"ids": ["web_1/a"], "labels": ["blau-ü"]})
    make(selection={"ids": ["web_2/b"]})

    page = admin_client.get(URL, {"q": word})

    assert [row.pk for row in page.context["cl"].result_list] == [found.pk]


def test_an_order_to_many_is_found_by_each_that_heard_it(admin_client):
    workers = WorkerFactory.create_batch(audit.SHOWN + 1)
    fleet.order(Worker.objects.all(), WorkerState.QUIET, actor=Actor("ops", Source.ADMIN))
    last = max(worker.pk for worker in workers)

    page = admin_client.get(URL, {"q": last})

    (action,) = page.context["cl"].result_list
    assert last not in action.selection["ids"]
    detail = admin_client.get(f"{URL}{action.pk}/change/").content.decode()
    assert reverse("admin:ojs_workers_worker_order", args=[action.pk]) in detail


def test_an_action_leads_to_what_was_acted_on(admin_client):
    job, worker = JobFactory(), WorkerFactory(worker_id="web_1/a")
    make("cancel_job", "job", selection={"ids": [str(job.pk)]})
    make(selection={"ids": [worker.pk]}, count=5)

    rows = body(admin_client.get(URL).content.decode())

    assert reverse("admin:ojs_jobs_job_change", args=[job.pk]) in rows
    assert "/admin/ojs_workers/worker/web_5F1_2Fa/change/" in rows
    assert "and 4 more" in rows


def test_actions_are_found_by_their_time(admin_client):
    make(done_at=ago(7200))
    new = make()

    page = admin_client.get(URL, {"since": "1h"})

    assert [row.pk for row in page.context["cl"].result_list] == [new.pk]
    assert page.context["cl"].date_hierarchy == "done_at"
