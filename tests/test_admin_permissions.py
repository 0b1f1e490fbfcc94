"""Permissions of the admin: what each permits, page by page and action by action.

The tables below declare it; pages and actions are found by the admin's own patterns, and fail here
if they are missing from the tables. Users who may only view are in `test_view_only`, the groups in
`test_permissions`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from itertools import product

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.template.response import SimpleTemplateResponse
from django.test import Client

from jobs.admin.bulk_operation import NewBulkOperationForm
from jobs.admin.schema import fingerprint
from tests.admin_walk import (
    ACTIONS,
    OURS,
    SHOWS,
    chosen,
    confirmation,
    make_site,
    named_addresses,
    snapshot,
)
from tests.database import rolled_back
from tests.once import once_is_enough
from tests.operators import APPS, buttons

# Thousands of requests: minutes on a busy machine.
pytestmark = [once_is_enough, pytest.mark.django_db, pytest.mark.slow]

MODELS = {model._meta.model_name: model for model in OURS}
SWITCHES = ("maintenance", "dashboard")
"""Pages in place of a model's list: each has its own permission."""
NEVER: list[set[str]] = []

ACTION_TAKES = {
    ("apikey", "rotate"): "manage_keys",
    ("apikey", "revoke"): "manage_keys",
    ("cronjob", "run_now"): "operate_cron",
    ("cronjob", "enable"): "operate_cron",
    ("cronjob", "disable"): "operate_cron",
    ("cronjob", "delete"): "delete_cronjob",
    ("job", "cancel"): "cancel_job",
    ("job", "retry"): "retry_job",
    ("job", "run_now"): "run_job",
    ("job", "discard"): "discard_job",
    ("job", "erase"): "erase_job",
    ("deadjob", "retry"): "retry_job",
    ("deadjob", "discard"): "discard_job",
    ("queue", "pause"): "pause_queue",
    ("queue", "resume"): "pause_queue",
    ("queue", "purge"): "purge_queue",
    ("workflow", "cancel"): "cancel_workflow",
    ("jobschema", "set_mode"): "manage_schema",
    ("jobschema", "remove"): "manage_schema",
    ("jobspec", "withdraw"): "register_spec",
    ("tenant", "remove"): "manage_tenant",
    ("pool", "remove"): "manage_pool",
    ("ratelimit", "release"): "change_ratelimit",
    ("ratelimit", "restore"): "change_ratelimit",
    ("bulkoperation", "stop"): "run_bulkoperation",
    ("bulkoperation", "go_on"): "run_bulkoperation",
    ("fleetoperation", "pause"): "drain_fleet",
    ("fleetoperation", "go_on"): "drain_fleet",
    ("fleetoperation", "abort"): "drain_fleet",
    ("worker", "quiet"): "quiet_worker",
    ("worker", "terminate"): "terminate_worker",
    ("worker", "resume"): "resume_worker",
    ("worker", "drain"): "drain_fleet",
    ("worker", "unflag"): "unflag_worker",
    ("alertrule", "test"): "manage_alerts",
    ("alertrule", "enable"): "manage_alerts",
    ("alertrule", "disable"): "manage_alerts",
    ("alertrule", "delete"): "manage_alerts",
    ("alert", "acknowledge"): "acknowledge_alert",
    ("webhooksubscription", "test"): "manage_webhooks",
    ("webhooksubscription", "pause"): "manage_webhooks",
    ("webhooksubscription", "resume"): "manage_webhooks",
    ("webhooksubscription", "rotate"): "manage_webhooks",
    ("webhooksubscription", "delete"): "manage_webhooks",
    ("webhookdelivery", "replay"): "manage_webhooks",
}
"""Action → the single permission it requires, besides that to view the list."""

MANAGES = {
    "apikey": "manage_keys",
    "jobspec": "register_spec",
    "tenant": "manage_tenant",
    "pool": "manage_pool",
    "alertrule": "manage_alerts",
    "webhooksubscription": "manage_webhooks",
}
"""Models whose rows are added and changed in a form, and the permission, which also shows them."""
MADE_WITH = MANAGES | {
    "job": "enqueue_job",
    "cronjob": "add_cronjob",
    "jobschema": "manage_schema",
    "mark": "add_mark",
    "bulkoperation": "run_bulkoperation",
}
"""Models with a form for a new row, and the permission that opens it."""

LIMITS = {"max_queue_depth": "7", "fairness_weight": "2", "priority_boost": "0"}
POOL = {"queues": '["mail", "web"]', "strategy": "strict"}
HOOK = {"url": "https://hooks.example.com/x", "events": "job.*", "timeout": "20"}
ALERT = {"limit_seconds": "10", "begins_after": "0", "ends_after": "0", "type": ""}


def counted(**form: str) -> dict[str, str]:
    """A filled-in form whose jobs have been counted."""
    filled = NewBulkOperationForm(form)
    assert filled.is_valid()
    return form | {"counted": filled.fingerprint}


WRITES = {
    "ojs_jobs/apikey/add/": ("manage_keys", {"name": "new", "scopes": ["work"]}),
    "ojs_jobs/apikey/<path:object_id>/change/": (
        "manage_keys",
        {"name": "renamed", "scopes": ["work"]},
    ),
    "ojs_jobs/jobschema/add/": (
        "manage_schema",
        {
            "type": "new.type",
            "version": "1.0.0",
            "schema": "{}",
            "compared": fingerprint("new.type", "1.0.0", {}),
        },
    ),
    "ojs_jobs/jobspec/add/": ("register_spec", {"type": "new.type", "checksum": "v1"}),
    "ojs_jobs/jobspec/<path:object_id>/change/": ("register_spec", {"checksum": "v99"}),
    "ojs_jobs/tenant/add/": ("manage_tenant", LIMITS | {"name": "new"}),
    "ojs_jobs/tenant/<path:object_id>/change/": ("manage_tenant", LIMITS),
    "ojs_jobs/pool/add/": ("manage_pool", POOL | {"name": "new"}),
    "ojs_jobs/pool/<path:object_id>/change/": ("manage_pool", POOL),
    "ojs_jobs/queue/<path:object_id>/change/": ("change_queue", {"concurrency": "17"}),
    "ojs_jobs/maintenance/": ("maintenance", {"verb": "begin", "reason": "test"}),
    "ojs_jobs/bulkoperation/add/": (
        "run_bulkoperation",
        counted(verb="retry", queue="mail", type="", priority=""),
    ),
    "ojs_jobs/job/add/": ("enqueue_job", {"type": "new.type"}),
    "ojs_jobs/cronjob/add/": ("add_cronjob", {"name": "new", "type": "new.type"}),
    "ojs_jobs/cronjob/<path:object_id>/change/": ("change_cronjob", {"type": "new.type"}),
    "ojs_workers/mark/add/": ("add_mark", {"kind": "note", "text": "new"}),
    "ojs_workers/alertrule/add/": ("manage_alerts", {"kind": "unserved_queues"} | ALERT),
    "ojs_workers/alertrule/<path:object_id>/change/": ("manage_alerts", ALERT | {"name": "new"}),
    "ojs_workers/webhooksubscription/add/": ("manage_webhooks", HOOK),
    "ojs_workers/webhooksubscription/<path:object_id>/change/": ("manage_webhooks", HOOK),
    "ojs_jobs/job/<str:object_id>/copy/": ("enqueue_job", {}),
    "ojs_jobs/deadjob/<str:object_id>/copy/": ("enqueue_job", {}),
}
"""Page → the permission that its form requires, and the data to submit. Other forms are actions."""
SHOW_A_SECRET = ("ojs_jobs/apikey/add/", "ojs_workers/webhooksubscription/add/")
"""Forms whose response shows what is not shown again."""
COPY = {
    "queue": "default",
    "priority": "0",
    "args": "[]",
    "meta": "{}",
    "tags": "[]",
    "delay_until": "",
    "expression": "@daily",
    "timezone": "UTC",
    "overlap_policy": "skip",
}


def seen_with(name: str) -> list[set[str]]:
    """The permissions each of which alone permits the list and the pages of a model."""
    by = [{f"view_{name}"}, {f"change_{name}"}]
    return [*by, {MANAGES[name]}] if name in MANAGES else by


def openings() -> dict[str, list[set[str]]]:
    """Page → the sets of permissions that permit it."""
    pages = {
        "ojs_jobs/maintenance/": [{"maintenance"}],
        "ojs_workers/dashboard/": [{"view_dashboard"}],
        "ojs_workers/dashboard/breakdown/": [{"view_dashboard"}],
    }
    for name, model in MODELS.items():
        if name == "dashboard":  # a single page
            continue
        place = f"{model._meta.app_label}/{name}/"
        look = NEVER if name in SWITCHES else seen_with(name)
        pages.setdefault(place, look)
        for page in ("history", "change"):
            pages[f"{place}<path:object_id>/{page}/"] = look
        pages[f"{place}<path:object_id>/delete/"] = NEVER
        pages[f"{place}add/"] = [{MADE_WITH[name]}] if name in MADE_WITH else NEVER
    for name in ("job", "deadjob"):
        pages[f"ojs_jobs/{name}/csv/"] = seen_with(name)
        # The dead job in the tests has hidden arguments.
        takes = {"enqueue_job"} if name == "job" else {"enqueue_job", "view_job_args"}
        copy = f"ojs_jobs/{name}/<str:object_id>/copy/"
        pages[copy] = [takes | look for look in seen_with(name)]
        # Only with a codec server.
        pages[f"ojs_jobs/{name}/<str:object_id>/clear/"] = NEVER
    pages["ojs_jobs/job/about/"] = [{"enqueue_job"}]
    pages["ojs_jobs/cronjob/preview/"] = [{"add_cronjob"}, {"change_cronjob"}]
    # A job has one history, wherever it is listed.
    pages["ojs_jobs/deadjob/<path:object_id>/history/"] = seen_with("deadjob") + seen_with("job")
    pages["ojs_workers/worker/order/<int:action_id>/"] = seen_with("worker")
    pages["ojs_workers/worker/map/"] = seen_with("worker")
    return pages


OPENINGS = openings()
EVERYBODYS = (
    "admin/",
    "admin/jsi18n/",
    "admin/r/<path:content_type_id>/<path:object_id>/",
    # It only reports that something has changed, not what.
    "admin/ojs_workers/dashboard/live/",
    # It finds what the user may look at.
    "admin/ojs_workers/dashboard/find/",
)
"""Pages that belong to no model: every staff member may open them."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of refusals, each of which Django logs with a traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may open a page is decided before it is rendered, which would take half of the time."""
    monkeypatch.setattr(SimpleTemplateResponse, "rendered_content", "")


@pytest.fixture(autouse=True)
def site(db: None) -> None:
    make_site()


class Staff:
    """A staff member whose permissions change."""

    def __init__(self) -> None:
        self.user = User.objects.create_user("staff", is_staff=True)
        self.client = Client(raise_request_exception=False)
        self.client.force_login(self.user)
        self._known = {
            permission.codename: permission
            for permission in Permission.objects.filter(content_type__app_label__in=APPS)
        }

    def may(self, *names: str) -> Client:
        self.user.user_permissions.set([self._known[name] for name in names])
        return self.client

    def views(self) -> set[str]:
        """The permission to view everything, except hidden values."""
        return {name for name in self._known if name.startswith("view_")} - {"view_job_args"}

    def verbs(self) -> list[str]:
        """Permissions for which Django itself has no name."""
        own = ("add_", "change_", "delete_", "view_")
        return [name for name in self._known if not name.startswith(own)] + ["view_job_args"]

    def all_but(self, *names: str) -> set[str]:
        return set(self._known) - set(names)

    def opening(self, page: str) -> list[set[str]]:
        """The sets of permissions that permit a page, of those that exist."""
        return [needed for needed in OPENINGS[page] if needed <= set(self._known)]

    def too_few(self, page: str) -> list[set[str]]:
        """The largest sets of permissions that do not permit a page.

        A permission never closes a page: so of any other set that does not permit it, one of these
        has all.
        """
        lacking = {frozenset(each) for each in product(*self.opening(page))}
        return [self.all_but(*some) for some in lacking if not any(one < some for one in lacking)]


@pytest.fixture
def staff(site: None) -> Staff:
    return Staff()


def pages() -> dict[str, str]:
    """Page → URL, for our models."""
    found = {}
    for text, url in named_addresses():
        page = text.removeprefix("admin/")
        if not text.startswith("admin/") or text in EVERYBODYS or not page.startswith(APPS):
            continue
        # Django's redirect from a page's old URL.
        if not page.endswith("/<path:object_id>/"):
            found[page] = url
    return found


def test_every_page_and_every_action_has_a_row_in_these_tables(staff):
    assert set(pages()) == set(OPENINGS)
    assert {(model._meta.model_name, action) for model, action in ACTIONS} == set(ACTION_TAKES)
    named = {*ACTION_TAKES.values(), *(name for name, _ in WRITES.values())}
    named |= {name for sets in OPENINGS.values() for needed in sets for name in needed}
    assert set(staff.verbs()) <= named, "a permission that opens nothing"


def test_a_page_opens_with_whatever_is_said_to_open_it(staff, unrendered):
    before, urls, wrong = snapshot(), pages(), []
    for page in OPENINGS:
        for held in staff.opening(page):
            status = staff.may(*held).get(urls[page]).status_code
            if status != 200:
                wrong.append((page, status, *held))

    assert wrong == []
    assert snapshot() == before


def test_a_page_stays_closed_without_it_though_one_have_all_other_permissions(staff, unrendered):
    before, urls, wrong = snapshot(), pages(), []
    for page in OPENINGS:
        for held in staff.too_few(page):
            status = staff.may(*held).get(urls[page]).status_code
            # A missing row redirects to the index, but only for users who may view the model.
            if status == 200 or status >= 500:
                wrong.append((page, status, *(staff.all_but() - held)))

    assert wrong == []
    assert snapshot() == before


def sent_to(page: str) -> dict[str, object]:
    """A value for every form that a page might have."""
    form = {"_save": "1", "verb": "begin", "post": "yes", "confirmed": "1", "shown": "[]"}
    return (
        form | COPY | {"type": "t", "name": "n", "concurrency": "1"} | WRITES.get(page, ("", {}))[1]
    )


def test_a_form_takes_its_own_permission_though_one_have_all_others(staff, unrendered):
    urls, before = pages(), snapshot()
    for page, (verb, _) in WRITES.items():
        client = staff.may(*staff.all_but(verb))
        assert client.post(urls[page], sent_to(page)).status_code == 403, page
    client = staff.may(*staff.all_but())
    for page in set(urls) - set(WRITES):
        status = client.post(urls[page], sent_to(page)).status_code
        assert status in (200, 302, 403), (page, status)

    assert snapshot() == before


@pytest.mark.parametrize("page", sorted(WRITES))
def test_what_a_permission_lets_be_saved_is_saved(staff, page):
    """Otherwise the test above would prove nothing."""
    name, form = WRITES[page]
    client, before = staff.may(*staff.views(), name, "view_job_args"), snapshot()

    status = client.post(pages()[page], sent_to(page) | form).status_code

    assert status == (200 if page in SHOW_A_SECRET else 302)
    assert snapshot() != before


def test_each_action_is_carried_out_with_its_permission_and_with_no_other(staff, admin_client):
    for model, action in ACTIONS:
        name = str(model._meta.model_name)
        takes, asked = ACTION_TAKES[name, action], chosen(model, action)
        url, form = confirmation(admin_client, model, action)
        before = snapshot()
        for sent in (asked, asked | {"select_across": "1"}, form):
            client = staff.may(*staff.all_but(takes))
            assert client.post(url, sent).status_code == 403, (name, action, "all but its own")
            if takes not in (MANAGES.get(name), f"change_{name}"):  # these show it, too
                client = staff.may(takes)
                assert client.post(url, sent).status_code == 403, (name, action, "unseen")
        assert snapshot() == before, (name, action)

        with rolled_back():
            done = 200 if action in SHOWS else 302
            client = staff.may(takes, f"view_{name}")
            assert client.post(url, form).status_code == done, (name, action)
            assert snapshot() != before, (name, action)


def pages_of(model) -> str:
    return f"{model._meta.app_label}/{model._meta.model_name}/"


def test_a_page_has_buttons_for_what_one_may_and_for_nothing_else(staff):
    views, urls = staff.views(), pages()
    shown: set[tuple[str, str]] = set()
    for name, model in MODELS.items():
        if name in SWITCHES or not admin.site._registry[model].actions:
            continue
        url = urls[f"{pages_of(model)}<path:object_id>/change/"]

        def offered(held, name=name, url=url):
            return {(name, action) for action in buttons(staff.may(*held).get(url))}

        shown |= (every := offered(staff.all_but()))
        for verb in {ACTION_TAKES[each] for each in every}:
            own = {each for each in every if ACTION_TAKES[each] == verb}
            assert offered({*views, verb}) == own, (name, verb)
            assert offered(staff.all_but(verb)) == every - own, (name, verb)

    assert len(shown) > 10


def test_nobody_is_led_to_a_page_that_refuses_them(staff):
    urls, followed = pages(), 0
    for name, model in MODELS.items():
        if name in SWITCHES:
            continue
        client = staff.may(f"view_{name}")
        seen: set[str] = set()
        for page in ("", "<path:object_id>/change/"):
            url = urls[f"{pages_of(model)}{page}"]
            content = client.get(url).content.decode()
            links = {
                link.partition("?")[0] for link in re.findall(r'href="(/admin/[^"#]*)"', content)
            }
            for link in sorted(links - seen):
                assert client.get(link).status_code != 403, (url, link)
            followed += len(links - seen)
            seen |= links

    assert followed > 200


def test_what_is_not_ours_stays_closed_to_all_our_permissions(staff):
    client = staff.may(*staff.all_but())
    for text, url in named_addresses():
        page = text.removeprefix("admin/")
        if text.startswith("admin/") and text not in EVERYBODYS and not page.startswith(APPS):
            # A missing row redirects to the index.
            assert client.get(url).status_code in (302, 403, 404), page
            assert client.post(url, sent_to(page)).status_code in (302, 403, 404, 405), page
