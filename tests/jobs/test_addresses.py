"""The address of a client behind proxies: one rule for everything that records it."""

from __future__ import annotations

import pytest

from jobs.access.address import client_address
from jobs.http.authentication import make_key
from jobs.models import OperatorAction
from tests.factories import QueueFactory
from tests.ojs_client import OJSClient
from tests.operators import confirm


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        # No proxy: the header is the client's own.
        (0, "203.0.113.9", "192.0.2.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "10.0.0.1, 203.0.113.9", "203.0.113.9"),
        (2, "10.0.0.1, 203.0.113.9, 198.51.100.7", "203.0.113.9"),
        # Fewer entries than proxies: the request did not come through them.
        (2, "203.0.113.9", "192.0.2.1"),
        (1, "", "192.0.2.1"),
        (1, "2001:db8::1:2", "2001:db8::1:2"),
        (1, "::ffff:203.0.113.9", "203.0.113.9"),
        (1, "203.0.113.9:4711", "203.0.113.9"),
        (1, "[2001:db8::1]:4711", "2001:db8::1"),
        (1, "[2001:db8::1]", "2001:db8::1"),
        (1, "unknown", ""),
        (1, "<script>", ""),
    ],
)
def test_the_address_is_the_one_that_the_sites_own_proxy_saw(settings, proxies, forwarded, address):
    settings.OJS = settings.OJS | {"PROXIES": proxies}

    assert client_address("192.0.2.1", forwarded) == address


@pytest.fixture
def behind_a_proxy(settings):
    settings.OJS = settings.OJS | {"PROXIES": 1}
    return {"REMOTE_ADDR": "192.0.2.1", "HTTP_X_FORWARDED_FOR": "10.1.1.1, 203.0.113.9"}


@pytest.mark.django_db
def test_a_refusal_is_noted_with_it(behind_a_proxy):
    OJSClient("ojs_no-key").get("/ojs/v1/queues", **behind_a_proxy)

    assert OperatorAction.objects.get().address == "203.0.113.9"


@pytest.mark.django_db
def test_a_keys_last_use_is_noted_with_it(behind_a_proxy):
    record, key = make_key("billing")

    OJSClient(key).get("/ojs/v1/queues", **behind_a_proxy)

    record.refresh_from_db()
    assert record.last_used_address == "203.0.113.9"


@pytest.mark.django_db
def test_what_a_key_does_is_noted_with_it(behind_a_proxy):
    _, key = make_key("billing", scopes=["operate"])
    queue = QueueFactory()

    OJSClient(key).send(f"queues/{queue.name}/pause", {}, **behind_a_proxy)

    assert OperatorAction.objects.get(verb="pause_queue").address == "203.0.113.9"


@pytest.mark.django_db
def test_what_an_operator_does_is_noted_with_it(behind_a_proxy, admin_client):
    admin_client.defaults.update(behind_a_proxy)

    confirm(admin_client, "ojs_jobs_queue", "pause", QueueFactory())

    assert OperatorAction.objects.get(verb="pause_queue").address == "203.0.113.9"
