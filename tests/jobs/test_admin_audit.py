"""The audit in the admin: who did what, in the reader's words."""

from __future__ import annotations

import ast

import pytest
from django.utils import translation

from jobs.admin.verbs import VERBS
from jobs.models import OperatorAction
from tests.operators import operator
from tests.translations import ROOT

pytestmark = pytest.mark.django_db
URL = "/admin/ojs_jobs/operatoraction/"


def written() -> set[str]:
    """The verbs that stand in calls which leave a trace."""
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


def test_an_action_is_told_and_found_in_the_words_of_the_reader():
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
