"""Pages of the admin, found by its own patterns, answer addresses that nobody linked to."""

from __future__ import annotations

import json
import re

import pytest
from django.urls import reverse

from tests.admin_walk import ACTIONS as ACTIONS_OF_LISTS
from tests.admin_walk import patterns

pytestmark = pytest.mark.django_db

PAGES = sorted(
    text for text, _ in patterns() if text.startswith(("admin/ojs_jobs/", "admin/ojs_workers/"))
)
ACTIONS = reverse("admin:ojs_jobs_operatoraction_changelist")


def at(page, key):
    return "/" + re.sub("<[^>]+>", key, page)


def test_no_page_looks_for_a_nul_character(admin_client):
    queries = [at(page, "1") + "?state=%00" for page in PAGES]
    names = [at(page, "1") + "?%00=x" for page in PAGES]
    keys = [at(page, "a%00") for page in PAGES if "<" in page]

    answers = {url: admin_client.get(url).status_code for url in [*queries, *names, *keys]}

    assert len(queries) > 100 and len(keys) > 50
    assert {url: status for url, status in answers.items() if status != 400} == {}


@pytest.mark.parametrize("key", ["nosuch", "", "a\x00b", "9" * 30, "-1"])
def test_an_action_on_what_cannot_be_there_is_refused_or_does_nothing(admin_client, key):
    answers = {}
    for model, action in ACTIONS_OF_LISTS:
        url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        sent = {"action": action, "index": "0", "_selected_action": [key]}
        confirmed = {**sent, "confirmed": "1", "shown": json.dumps([key])}
        answers[url, action] = [
            admin_client.post(url, fields).status_code for fields in (sent, confirmed)
        ]

    refusals = {400} if "\x00" in key else {302, 400}
    assert len(answers) > 30
    assert {at: codes for at, codes in answers.items() if not refusals.issuperset(codes)} == {}


def test_the_fleet_map_names_no_worker_with_a_nul(admin_client):
    url = reverse("admin:ojs_workers_worker_changelist")
    sent = {"action": "quiet", "index": "0", "chosen": json.dumps(["a\x00b"])}

    assert admin_client.post(url, sent).status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        "done_at__year=99999999999999999999999999",
        "done_at__year=10000",
        "done_at__year=9999",
        "done_at__year=9999&done_at__month=12",
        "done_at__year=1",
        "done_at__year=0",
        "done_at__year=2026&done_at__month=13",
        "done_at__year=2026&done_at__month=2&done_at__day=30",
        "done_at__year=x",
    ],
)
def test_a_date_that_no_calendar_has_leads_back_to_the_list(admin_client, query):
    page = admin_client.get(f"{ACTIONS}?{query}", follow=True)

    assert page.status_code == 200
    assert page.redirect_chain in ([], [(f"{ACTIONS}?e=1", 302)])
