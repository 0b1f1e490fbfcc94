"""Webhooks by real threads: a receiver that never answers holds up no other, and none gets two."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from jobs.models import Event
from jobs.store import clock
from tests.concurrency.threads import together
from tests.processes import eventually
from tests.workers import deliveries
from tests.workers.receiver import receiving
from workers.chores import webhook_worker
from workers.models import WebhookDelivery, WebhookSubscription
from workers.webhooks import fan_out

pytestmark = pytest.mark.django_db(transaction=True)

EVENTS = 60


@pytest.fixture(autouse=True)
def receivers_on_this_machine(settings):
    settings.OJS = settings.OJS | {
        "OUTBOUND_NETWORKS": ["127.0.0.1"],
        "WEBHOOKS_ALLOW_HTTP": True,
    }


def subscribe(url: str) -> WebhookSubscription:
    return WebhookSubscription.objects.create(url=url, events=["job.*"], secret="whsec", timeout=60)


def happen(count: int = EVENTS) -> None:
    now = clock.now()
    Event.objects.bulk_create(
        Event(type="job.completed", subject=str(number), job_type="a.b", time=now)
        for number in range(count)
    )


def subjects(received) -> Counter:
    return Counter(json.loads(body)["subject"] for _, body in received)


def test_a_receiver_that_never_answers_holds_up_no_other():
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=200))
        receiver = stack.enter_context(receiving())
        hanging = subscribe(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        answering = subscribe(receiver.at())
        happen()
        fan_out.fan_out()

        with webhook_worker.hosted():
            eventually(lambda: not answering.deliveries.pending().exists())
            left = hanging.deliveries.pending().count()
            # Its connections are reset, so that no thread waits for it any longer.
            silent.close()

    assert left == EVENTS
    assert set(subjects(receiver.received).values()) == {1}
    assert len(subjects(receiver.received)) == EVENTS


def test_several_processes_write_and_send_each_delivery_once():
    with receiving() as receiver:
        subscribe(receiver.at())
        happen()

        def work() -> None:
            name = f"postman-{threading.get_ident()}"
            for _ in range(5):
                fan_out.fan_out()
                deliveries.run_waiting(name)

        together(work, work, work)
        webhook_worker.run_waiting()

    assert WebhookDelivery.objects.count() == EVENTS
    assert set(WebhookDelivery.objects.values_list("state", flat=True)) == {"delivered"}
    assert set(subjects(receiver.received).values()) == {1}
