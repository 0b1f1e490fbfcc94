"""The fleet map: every worker a cell, chosen and sent to the list's own actions."""

from __future__ import annotations

import json
import re

import pytest
from django.urls import reverse

from tests.factories import JobFactory, WorkerFactory, ago
from tests.operators import answer, staff
from workers.models import Worker

pytestmark = pytest.mark.django_db


def the_map():
    return reverse("admin:ojs_workers_worker_map")


def cells(page):
    return re.findall(r'name="_selected_action" value="([^"]+)"', page.content.decode())


def test_a_cell_says_its_state_load_and_size(admin_client):
    WorkerFactory(worker_id="small", concurrency=4)
    WorkerFactory(worker_id="large", concurrency=16)
    JobFactory(active=True, reserved_by="small")

    page = admin_client.get(the_map()).content.decode()

    assert "small: running, 1 of 4 jobs" in page and "large: running, 0 of 16 jobs" in page
    sides = dict(re.findall(r'value="(\w+)" aria-label.*?<svg class="[^"]+" width="(\d+)"', page))
    assert int(sides["large"]) > int(sides["small"])
    assert "style=" not in page.partition('class="ojs-groups"')[2]


def test_workers_stand_under_their_hosts_or_labels(admin_client):
    WorkerFactory(worker_id="a", hostname="one", labels=["x", "y"])
    WorkerFactory(worker_id="b", hostname="two", labels=["y", "x"])

    by_host = admin_client.get(the_map()).context["groups"]
    by_label = admin_client.get(the_map(), {"group": "label"}).context["groups"]

    assert [(group.name, len(group.cells)) for group in by_host] == [("one", 1), ("two", 1)]
    assert [(group.name, len(group.cells)) for group in by_label] == [("x, y", 2)]


def test_it_takes_the_filters_of_the_list_and_leads_back_with_them(admin_client):
    WorkerFactory(worker_id="a", labels=["blue"])
    WorkerFactory(worker_id="b", labels=["green"])

    page = admin_client.get(the_map(), {"label": "blue"})

    assert cells(page) == ["a"]
    assert reverse("admin:ojs_workers_worker_changelist") + "?label=blue" in page.content.decode()
    assert admin_client.get(the_map(), {"nonsense": "1"}).status_code == 302


def test_a_worker_that_went_long_ago_is_drawn_only_when_asked_for(admin_client):
    WorkerFactory(worker_id="here")
    gone = {"state": "terminated", "died_at": ago(60)}
    WorkerFactory(worker_id="lately", last_heartbeat_at=ago(3600), **gone)
    WorkerFactory(worker_id="long-ago", last_heartbeat_at=ago(90_000), **gone)

    assert set(cells(admin_client.get(the_map()))) == {"here", "lately"}
    dead = admin_client.get(the_map(), {"state": "dead"})
    assert set(cells(dead)) == {"lately", "long-ago"}


def test_chosen_cells_are_sent_to_an_action_that_asks_and_leads_back():
    client = staff("view_worker", "quiet_worker")
    for name in ("a", "b", "c"):
        WorkerFactory(worker_id=name)
    page = client.get(the_map())
    assert 'value="quiet"' in page.content.decode()
    assert 'value="terminate"' not in page.content.decode()

    url = reverse("admin:ojs_workers_worker_changelist")
    sent = {"action": "quiet", "index": "0", "_selected_action": ["a", "c"], "back": the_map()}
    asked = client.post(url, sent)
    answer(client, asked)

    assert "a" in [worker.pk for worker in asked.context["objects"]]
    assert asked.context["back"] == the_map()
    assert set(Worker.objects.filter(directive="quiet").values_list("pk", flat=True)) == {"a", "c"}


def test_a_thousand_cells_are_sent_in_one_field(settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 20
    client = staff("view_worker", "quiet_worker")
    names = [f"w-{number}" for number in range(30)]
    Worker.objects.bulk_create(WorkerFactory.build(worker_id=name) for name in names)
    page = client.get(the_map()).content.decode()
    assert "Without JavaScript, at most 10 cells can be sent at once" in page
    url = reverse("admin:ojs_workers_worker_changelist")
    sent = {"action": "quiet", "index": "0", "back": the_map()}

    asked = client.post(url, sent | {"chosen": json.dumps(names[:25])})
    answer(client, asked)

    assert Worker.objects.filter(directive="quiet").count() == 25
    for wrong in ("[1]", "x", "{}"):
        assert client.post(url, sent | {"chosen": wrong}).status_code == 400


def test_a_thousand_workers_take_few_queries_and_little_room(
    admin_client, django_assert_max_num_queries
):
    Worker.objects.bulk_create(
        WorkerFactory.build(worker_id=f"w-{n}", hostname=f"h-{n % 40}", concurrency=10)
        for n in range(1000)
    )

    with django_assert_max_num_queries(15):
        page = admin_client.get(the_map())

    assert len(cells(page)) == 1000
    widths = re.findall(
        r'<svg class="ojs-cell ojs-cell-running" width="(\d+)" height', page.content.decode()
    )
    assert sum(int(width) ** 2 for width in widths) < 1280 * 700


def test_who_may_not_see_workers_sees_no_map():
    assert staff("view_job").get(the_map()).status_code == 403
