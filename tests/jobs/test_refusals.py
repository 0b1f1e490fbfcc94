"""The audit of refused requests: what is recorded, how much of it, and what is not."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.access import refusals
from jobs.access.refusals import ROWS, Throttle
from jobs.errors import NotAuthenticated, PermissionDenied
from jobs.http.authentication import make_key
from jobs.models import ApiKey, Event, OperatorAction
from tests.database import connection
from tests.factories import JobFactory, ago
from tests.flare_client import FlareClient
from tests.ojs_client import OJSClient
from workers.chores import reaper

pytestmark = pytest.mark.django_db


def rows():
    return list(OperatorAction.objects.filter(verb="refuse_request").order_by("pk"))


def refused(key="", path="queues", address="192.0.2.7"):
    reply = OJSClient(key).get(f"/ojs/v1/{path}", REMOTE_ADDR=address)
    assert reply.status_code in (401, 403)
    return reply


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (None, "unknown_key"),
        ({"revoked_at": ago(1)}, "revoked_key"),
        ({"expires_at": ago(1)}, "expired_key"),
    ],
)
def test_a_refused_key_is_in_the_audit_with_address_protocol_and_reason(fields, reason):
    key = "ojs_mistyped-by-somebody" if fields is None else make_key("billing", **fields)[1]

    refused(key, "dead-letter?token=hunter2")

    (row,) = rows()
    assert (row.actor, row.source) == ("billing" if fields else "unknown", "api")
    assert (row.address, row.target_kind, row.count) == ("192.0.2.7", "apikey", 1)
    assert row.selection == {
        "protocol": "ojs",
        "reason": reason,
        "call": "GET /ojs/v1/dead-letter",
    }
    written = str(OperatorAction.objects.values())
    assert key not in written and key[:12] not in written and "hunter2" not in written


def test_what_a_key_may_not_is_in_the_audit_under_its_name(settings):
    settings.OJS = settings.OJS | {"FLARE": {"ENABLED": True}}
    _, key = make_key("billing", scopes=["produce"])

    refused(key, f"jobs/{JobFactory().pk}/checkpoint")
    assert FlareClient(key).poll_reply().status_code == 403

    over_ojs, over_flare = rows()
    assert over_ojs.actor == over_flare.actor == "billing"
    assert over_ojs.selection["reason"] == "permission_denied"
    assert over_ojs.selection["scope"] == "work"
    assert over_flare.selection["protocol"] == "flare"
    assert over_flare.selection["call"] == "POST /flare/v1/workers/poll"


def test_a_key_in_the_wrong_place_is_not_written_down():
    _, key = make_key("billing")

    refused("", f"jobs/{key}")

    (row,) = rows()
    assert row.selection["call"] == "GET /ojs/v1/jobs/…"


def test_a_request_that_is_served_or_wrong_leaves_nothing():
    client = OJSClient(make_key("billing")[1])

    assert client.push().status_code == 201
    assert client.push(type="").status_code == 400
    assert client.get("/ojs/v1/nothing").status_code == 404

    assert rows() == []


def test_refusals_are_no_events_which_every_producer_could_read():
    refused()

    assert not Event.objects.exists()


# Limits


def test_what_repeats_itself_is_one_row():
    for _ in range(50):
        refused("ojs_wrong")

    assert len(rows()) == 1


def test_a_scanner_that_comes_from_everywhere_fills_no_table():
    for number in range(3 * ROWS):
        refused("ojs_wrong", address=f"2001:db8::{number:x}")

    assert len(rows()) == ROWS


def test_all_processes_together_write_no_more_than_one():
    for process in range(3):
        refusals.forget()
        for number in range(ROWS):
            refused("ojs_wrong", address=f"2001:db8:{process}::{number:x}")

    assert len(rows()) == ROWS


def test_a_scanner_does_not_hide_the_use_of_a_revoked_key():
    for number in range(2 * ROWS):
        refused("ojs_wrong", address=f"2001:db8::{number:x}")

    refused(make_key("leaked", revoked_at=ago(1))[1])

    assert rows()[-1].actor == "leaked"


def test_a_refusal_costs_no_query_when_it_is_only_counted(django_assert_num_queries):
    refused()

    with django_assert_num_queries(0):
        refused()


KIND = ("192.0.2.7", "ojs", "unknown_key", "")


def kind(number):
    return (f"2001:db8::{number:x}", *KIND[1:])


def test_a_row_counts_those_before_it_that_were_left_out():
    throttle = Throttle()
    assert throttle.take(KIND, 0.0).count == 1
    assert [throttle.take(KIND, float(second)) for second in (1, 30, 59)] == [None] * 3

    assert throttle.take(KIND, 60.0).count == 4
    assert throttle.take(KIND, 120.0).count == 1


def test_those_that_do_not_come_again_are_counted_in_the_next_row_of_others():
    throttle = Throttle()
    for second in range(10):
        throttle.take(KIND, float(second))

    assert throttle.take(kind(1), 30.0).others == 0, "it may have a row of its own yet"
    assert throttle.take(kind(2), 60.0).others == 9


def test_those_left_out_for_being_too_many_are_counted_in_the_next_row():
    throttle = Throttle()
    taken = [throttle.take(kind(number), 0.0) for number in range(ROWS + 7)]
    assert taken[ROWS:] == [None] * 7

    assert throttle.take(KIND, 60.0).others == 7
    assert throttle.take(kind(99), 60.0).others == 0


def test_what_could_not_be_written_is_counted_in_the_next_row():
    throttle = Throttle()
    throttle.put_back(throttle.take(KIND, 0.0))

    assert throttle.take(kind(1), 1.0).others == 1


def test_the_memory_of_a_process_is_bounded(monkeypatch):
    monkeypatch.setattr(refusals, "REMEMBERED", 3)
    throttle = Throttle()
    calls = [KIND, KIND, *map(kind, range(5)), KIND]

    taken = [throttle.take(call, float(second)) for second, call in enumerate(calls)]

    written = [refusal for refusal in taken if refusal is not None]
    # The first kind was dropped meanwhile, but not its one refusal without a row.
    assert len(written) == len(calls) - 1
    assert sum(refusal.count + refusal.others for refusal in written) == len(calls)


@pytest.mark.django_db(transaction=True)
def test_where_nothing_can_be_written_the_client_hears_its_refusal_all_the_same():
    with connection.execute_wrapper(_away):
        assert OJSClient().push().status_code == 401

    assert rows() == []


def _away(execute, sql, params, many, context):
    from django.db import OperationalError

    raise OperationalError("the server closed the connection unexpectedly")


def test_only_refusals_are_audited():
    about = {"protocol": "ojs", "address": "192.0.2.7"}

    assert refusals.seen(ValueError("no refusal"), **about) is None
    assert refusals.seen(PermissionDenied("no"), **about) is not None
    assert refusals.seen(NotAuthenticated("no"), **about) is not None


# How long it is kept, and where it is read


def test_old_refusals_go_and_what_operators_did_stays(settings):
    settings.OJS = {"EVENT_RETENTION": 3600}
    refused("ojs_wrong")
    OperatorAction.objects.create(actor="ann", source="admin", verb="pause_queue")
    OperatorAction.objects.update(done_at=ago(3700))
    refused()

    assert reaper.sweep(["old-refusals"]) == {"old-refusals": 1}

    verbs = list(OperatorAction.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs == ["pause_queue", "refuse_request"]


def test_the_list_of_actions_shows_refusals_in_words(admin_client):
    refused("ojs_wrong")

    page = admin_client.get(reverse("admin:ojs_jobs_operatoraction_changelist"))

    content = page.content.decode()
    assert "was refused (401, 403)" in content
    assert "reason: unknown_key" in content


def test_a_refused_key_is_not_used():
    record, key = make_key("billing", revoked_at=ago(1))

    refused(key)

    assert ApiKey.objects.get(pk=record.pk).last_used_at is None
