"""Weighted fetches, so that no queue is starved (OJS priority §7.2)."""

from __future__ import annotations

import pytest

from tests.ojs_client import OJSClient
from workers.bindings.ojs import requests

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    return OJSClient()


def test_a_weighted_fetch_takes_from_its_queues(api):
    low = api.pushed(options={"queue": "low"})

    reply = api.send(
        "workers/fetch",
        {"queues": [{"name": "critical", "weight": 5}, "low"], "strategy": "weighted"},
    )

    assert [job["id"] for job in reply.json()["jobs"]] == [low]


SHARES = {"critical": 5, "default": 2, "low": 1}
FORMS = {
    "priority §7.3": {"queues": [{"name": name, "weight": SHARES[name]} for name in SHARES]},
    "fair scheduling §5.2": {"queues": list(SHARES), "weights": SHARES},
    "both, of which the latter wins": {
        "queues": [{"name": "critical", "weight": 2}, {"name": "default", "weight": 2}, "low"],
        "weights": {"critical": 5},
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_queues_come_first_in_proportion_to_their_weights_and_each_has_its_turn(form):
    weights = SHARES
    body = FORMS[form] | {"strategy": "weighted"}

    orders = [requests.queues(body) for _ in range(4000)]

    assert all(sorted(order) == sorted(weights) for order in orders)
    for name, weight in weights.items():
        share = sum(order[0] == name for order in orders) / len(orders)
        # Six standard deviations: a failure by chance takes a century of runs.
        assert abs(share - weight / 8) < 0.05, name


def test_without_the_strategy_weights_change_nothing():
    body = {"queues": [{"name": "b", "weight": 1}, {"name": "a", "weight": 9}, "c", "b"]}

    assert requests.queues(body) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"queues": [{"weight": 5}]}, "queues[0].name"),
        ({"queues": ["a", {"name": "b", "weight": 0}]}, "queues[1].weight"),
        ({"queues": [{"name": "b", "weight": "5"}]}, "queues[0].weight"),
        ({"queues": [{"name": "b"}, 5]}, "queues[1].name"),
        ({"queues": ["a"], "strategy": "fair"}, "strategy"),
        ({"queues": ["a"], "weights": [1]}, "weights"),
        ({"queues": ["a"], "weights": {"a": -1}}, "weights.a"),
        ({"queues": ["a"], "weights": {"a": "5"}}, "weights.a"),
        ({"queues": ["a"], "weights": {"b": 5}, "strategy": "weighted"}, "weights.b"),
    ],
    ids=str,
)
def test_what_cannot_be_weighed_is_refused(api, body, field):
    reply = api.send("workers/fetch", body)

    assert reply.status_code == 400
    details = reply.json()["error"]["details"]
    assert details["field"] == field
    assert [problem["path"] for problem in details["validation_errors"]] == [f"$.{field}"]
