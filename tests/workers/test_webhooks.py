"""Webhooks: subscriptions, what is sent to whom, how often, and with which signature."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

import orjson
import pytest

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import Event, Maintenance, OperatorAction, RateLimit, Tenant
from jobs.record import events
from jobs.spec.reserved import WEBHOOK_JOB, WEBHOOK_QUEUE
from jobs.spec.workflow_plans import plan_of
from jobs.store import clock, pace
from tests.factories import JobFactory, ago
from tests.ojs_client import MEDIA_TYPE, V1, OJSClient, refusal
from tests.workers import deliveries
from tests.workers.receiver import answering, receiving
from workers.alerts import problems
from workers.alerts.situation import Situation
from workers.chores import metrics, reaper, webhook_worker
from workers.models import WebhookDelivery, WebhookSubscription
from workers.runtime.client import LocalClient
from workers.runtime.outcomes import Snooze
from workers.webhooks import delivery, delivery_jobs, fan_out, subscriptions

pytestmark = pytest.mark.django_db

BASE = "webhooks/subscriptions"
URL = "https://hooks.example.com/T0"
ALL = {"job.enqueued", "job.started", "job.completed"}
LONG_AGO = ago(10 * 86_400)


@pytest.fixture(autouse=True)
def receivers_on_this_machine(settings):
    settings.OJS = settings.OJS | {
        "OUTBOUND_NETWORKS": ["127.0.0.1"],
        "WEBHOOKS_ALLOW_HTTP": True,
    }


def made(api, url=URL, kinds=("job.completed",), **given):
    reply = api.send(BASE, {"url": url, "events": list(kinds)} | given)
    assert reply.status_code == 201, reply.content
    return reply.json()


def patch(api, hook, **changes):
    return api.patch(f"{V1}/{BASE}/{hook['id']}", orjson.dumps(changes), content_type=MEDIA_TYPE)


def complete_a_job(api, **job) -> str:
    job_id = api.pushed(**job)
    (fetched,) = api.fetch(job.get("options", {}).get("queue", "default"))
    assert fetched["id"] == job_id
    assert api.ack(job_id).status_code == 200
    return job_id


def sent(*, pause_is_over: bool = True) -> None:
    """Send what is due, as the reaper does, after the pause that follows a failure."""
    if pause_is_over:
        deliveries.end_pauses()
    reaper.sweep(["webhooks"])
    deliveries.run_waiting()


def written() -> list[tuple[str, str]]:
    """The types and subjects of the deliveries that new events cause."""
    reaper.sweep(["webhooks"])
    rows = WebhookDelivery.objects.order_by("event_id", "subscription")
    return list(rows.values_list("event_type", "subject"))


def begun() -> delivery.Attempt:
    """What a worker is sending."""
    (context,) = deliveries.fetched(LocalClient("postman"))
    attempt = delivery.begin(delivery.carried_by(context.id, UUID(context.args[0])))
    assert attempt is not None
    return attempt


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Whether one of the signatures is that of the document's example (§14.5)."""
    text = f"{headers['X-OJS-Timestamp']}.{body.decode()}".encode()
    expected = "sha256=" + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    return any(
        hmac.compare_digest(expected, each) for each in headers["X-OJS-Signature"].split(",")
    )


def test_a_receiver_that_fails_twice_gets_the_event_and_verifies_the_signature(api):
    with receiving(503, 500) as receiver:
        hook = made(api, receiver.at(), filter={"queues": ["pay*"]})
        complete_a_job(api)
        job_id = complete_a_job(api, options={"queue": "payments"})
        for _ in range(4):
            sent()

    assert len(receiver.received) == 3
    headers, body = receiver.received[-1]
    event = json.loads(body)
    assert (event["type"], event["subject"]) == ("job.completed", job_id)
    assert (event["specversion"], event["data"]["queue"]) == ("1.0", "payments")
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"].startswith("OJS-Webhook/1.0")
    assert headers["X-OJS-Event-Type"] == "job.completed"
    assert headers["X-OJS-Subscription-ID"] == hook["id"]
    assert {each for _, each in receiver.received} == {body}
    assert len({each["X-OJS-Delivery-ID"] for each, _ in receiver.received}) == 1
    assert all(is_signed(hook["secret"], *each) for each in receiver.received)
    assert not is_signed("whsec_another-secret", headers, body)
    assert not is_signed(hook["secret"], headers, body + b" ")

    found = api.see(f"webhooks/deliveries/{headers['X-OJS-Delivery-ID']}").json()
    assert (found["status"], found["tries"], found["event_id"]) == ("delivered", 3, event["id"])
    assert [each.get("status") for each in found["attempts"]] == [503, 500, 200]
    assert found["body"] == body.decode()
    told = Event.objects.filter(subject=found["id"]).order_by("id").values_list("type", flat=True)
    assert list(told) == ["webhook.failed", "webhook.failed", "webhook.delivered"]


@pytest.mark.parametrize(("status", "asks"), [(500, ""), (429, "1")])
def test_attempts_follow_each_other_as_the_document_says_and_then_the_delivery_is_dead(
    api, status, asks
):
    """A receiver that limits its rate asks for a second, whatever has to wait in turn."""
    minutes = [each / timedelta(minutes=1) for each in delivery.PAUSES]
    assert minutes == [0.5, 2, 10, 60, 240, 720, 1440]
    with receiving(*[status] * 8) as receiver:
        receiver.retry_after = asks
        made(api, receiver.at())
        complete_a_job(api)
        sent()
        for pause in delivery.PAUSES:
            (row,) = WebhookDelivery.objects.all()
            waits = row.next_try_at - datetime.fromisoformat(row.attempts[-1]["at"])
            assert pause <= waits < pause + timedelta(minutes=5)
            sent(pause_is_over=False)
            assert len(receiver.received) == row.tries, "not before its pause is over"
            sent()
        sent()

    assert len(receiver.received) == 8
    row.refresh_from_db()
    assert (row.state, row.tries) == ("dead", 8)
    assert row.last_error == f"HTTP {status}: noted"


@pytest.mark.parametrize(
    ("status", "state"), [(204, "delivered"), (404, "dead"), (410, "dead"), (400, "dead")]
)
def test_what_a_receiver_refuses_is_not_sent_again(api, status, state):
    with receiving(status) as receiver:
        made(api, receiver.at())
        complete_a_job(api)
        sent()
        sent()

    assert len(receiver.received) == 1
    assert WebhookDelivery.objects.get().state == state
    assert WebhookSubscription.objects.get().failing_since is None


@pytest.mark.parametrize(
    ("asks", "seconds"),
    [
        ("90", 90),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 30),
        ("999999999", 86_400),
        ("soon", 30),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 30),
        ("Mon, 01 Jan 2035 00:00:00 +99999999999999999999", 30),
    ],
)
def test_a_receiver_may_say_when_it_takes_more(api, asks, seconds):
    with receiving(429) as receiver:
        receiver.retry_after = asks
        made(api, receiver.at())
        complete_a_job(api)
        before = clock.now()
        sent()
        after = clock.now()

    (row,) = WebhookDelivery.objects.pending()
    pause = timedelta(seconds=seconds)
    assert before + pause <= row.next_try_at <= after + pause


def test_a_receiver_that_limits_its_rate_is_left_alone_for_as_long_as_it_asks(api):
    """Each request that it refuses would be one of a delivery's few attempts."""
    with receiving(*[429] * delivery_jobs.EACH) as receiver:
        receiver.retry_after = "30"
        made(api, receiver.at())
        for _ in range(9):
            complete_a_job(api)
        before = clock.now()
        sent(pause_is_over=False)
        sent(pause_is_over=False)
        after = clock.now()
        assert len(receiver.received) == delivery_jobs.EACH, "what was under way"
        assert WebhookDelivery.objects.filter(tries=0).count() == 9 - delivery_jobs.EACH
        half_a_minute = timedelta(seconds=30)
        held_until = RateLimit.objects.get().held_until
        assert before + half_a_minute <= held_until <= after + half_a_minute

        sent()

    assert set(WebhookDelivery.objects.values_list("state", flat=True)) == {"delivered"}
    assert len(receiver.received) == 9 + delivery_jobs.EACH


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/\0 2 200 OK\r\n\r\n", "127.0.0.1: HTTP/ 2 200 OK"),
        (b"HTTP/1.1 abc \0\xff\r\n\r\n", "127.0.0.1: HTTP/1.1 abc \xff"),
        (b"HTTP/1.1 500 \0\r\n\r\n\0\xff\n", "HTTP 500: \ufffd"),
    ],
)
def test_an_attempt_is_noted_whatever_the_receiver_answers(api, answer, error):
    with answering(answer) as url:
        hook = made(api, url)
        complete_a_job(api)
        sent()
        tested = api.send(f"{BASE}/{hook['id']}/test").json()

    (row,) = WebhookDelivery.objects.pending()
    assert (row.tries, row.last_error) == (1, error)
    assert (tested["success"], tested["error"]) == (False, error)


def test_a_redirect_is_followed_but_not_to_a_private_address(api):
    with receiving(302, 200, 307) as receiver:
        hook = made(api, receiver.at())
        complete_a_job(api)
        sent()
        assert WebhookDelivery.objects.get().state == "delivered"
        assert all(is_signed(hook["secret"], *each) for each in receiver.received)

        receiver.location = "http://169.254.169.254/latest/meta-data/"
        complete_a_job(api)
        sent()

    assert len(receiver.received) == 3
    row = WebhookDelivery.objects.get(state="dead")
    assert "169.254.169.254 is not a public address" in row.last_error


def test_a_subscription_that_nothing_reaches_is_disabled_and_can_be_resumed(api, caplog):
    with receiving(*[500] * 2) as receiver:
        hook = made(api, receiver.at())
        complete_a_job(api)
        sent()
        WebhookDelivery.objects.update(tries=delivery.TRIES - 1)
        WebhookSubscription.objects.update(failing_since=LONG_AGO)
        sent()
        shown = api.see(f"{BASE}/{hook['id']}").json()
        assert (shown["active"], shown["disabled_reason"]) == (
            False,
            "No delivery has succeeded for as long as one is tried.",
        )
        (problem,) = problems.disabled_webhooks(Situation())
        assert problem.text.startswith("The webhook subscription of 127.0.0.1 was disabled: No")
        complete_a_job(api)
        sent()
        dead = WebhookDelivery.objects.get()
        refused = api.send(f"webhooks/deliveries/{dead.name}/retry")
        assert refusal(refused)["message"].endswith("is not active.")

        assert api.send(f"{BASE}/{hook['id']}/resume").json()["active"]
        assert api.send(f"webhooks/deliveries/{dead.name}/retry").json()["status"] == "pending"
        sent()

    headers = [each["X-OJS-Delivery-ID"] for each, _ in receiver.received]
    assert headers == [dead.name] * 3, "and nothing that happened meanwhile"
    shown = api.see(f"{BASE}/{hook['id']}").json()
    assert "disabled_reason" not in shown and "failing_since" not in shown


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        ({"events": ["job.completed"]}, {"job.completed"}),
        ({"events": ["job.started", "job.completed"]}, {"job.started", "job.completed"}),
        ({"events": ["*"], "filter": {"queues": ["def*"], "job_types": ["email.send"]}}, ALL),
        ({"events": ["job.*"]}, ALL),
        ({"events": ["workflow.*"]}, set()),
        ({"events": ["job.started"], "filter": {"queues": ["default"]}}, {"job.started"}),
        ({"events": ["job.started"], "filter": {"queues": ["other"]}}, set()),
        ({"events": ["job.started"], "filter": {"job_types": ["email.*"]}}, {"job.started"}),
        ({"events": ["job.started"], "filter": {"job_types": ["email"]}}, set()),
        ({"events": ["job.started"], "filter": {"job_types": ["*", "A.B+C*"]}}, {"job.started"}),
        ({"events": ["job.started"], "filter": {"queues": ["*", "a.b-1.*"]}}, {"job.started"}),
        ({"events": ["worker.*"], "filter": {"queues": ["default"]}}, set()),
        ({"events": ["job.completed"], "active": False}, set()),
    ],
)
def test_a_subscription_gets_what_it_wants(api, wanted, matched):
    complete_a_job(api)
    assert api.send(BASE, {"url": URL} | wanted).status_code == 201
    job_id = complete_a_job(api)

    assert set(written()) == {(kind, job_id) for kind in matched}, "and nothing from before"


def test_a_new_subscription_gets_nothing_from_before_however_late_events_are_read(api):
    old = made(api)
    first = complete_a_job(api)
    new = made(api)
    last = complete_a_job(api)

    written()

    pairs = WebhookDelivery.objects.order_by("event_id").values_list("subscription", "subject")
    found = {(f"sub_{key}", subject) for key, subject in pairs}
    assert found == {(old["id"], first), (old["id"], last), (new["id"], last)}


def test_no_delivery_causes_another(api):
    with receiving(500) as receiver:
        made(api, receiver.at(), ["*"])
        api.pushed()
        for _ in range(4):
            sent()
        count = WebhookDelivery.objects.count()
        sent()

    kinds = set(WebhookDelivery.objects.values_list("event_type", flat=True))
    assert not kinds & {"webhook.delivered", "webhook.failed", "webhook.dead"}
    assert WebhookDelivery.objects.count() == count


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"url": None}, "url"),
        ({"url": "hooks.example.com"}, "url"),
        ({"url": "https://me:secret@example.com/"}, "url"),
        ({"url": "https://10.1.2.3/"}, "url"),
        ({"url": "https://[::1]/"}, "url"),
        ({"url": "https://[fec0::1]/"}, "url"),
        ({"url": "https://example.com:0/"}, "url"),
        ({"url": "ftp://example.com/"}, "url"),
        ({"events": None}, "events"),
        ({"events": []}, "events"),
        ({"events": ["job.complete"]}, "events[0]"),
        ({"events": ["job.completed", "jobs.*"]}, "events[1]"),
        ({"events": ["webhook.delivered"]}, "events[0]"),
        ({"filter": {"queue": ["a"]}}, "filter.queue"),
        ({"filter": {"queues": "a"}}, "filter.queues"),
        ({"filter": {"queues": [""]}}, "filter.queues[0]"),
        ({"filter": {"queues": ["ok", "a*b"]}}, "filter.queues[1]"),
        ({"filter": {"queues": ["Mail"]}}, "filter.queues[0]"),
        ({"filter": {"job_types": ["ü"]}}, "filter.job_types[0]"),
        ({"filter": {"job_types": ["**"]}}, "filter.job_types[0]"),
        ({"filter": {"job_types": ["email.send@2"]}}, "filter.job_types[0]"),
        ({"secret": "short"}, "secret"),
        ({"timeout": 61}, "timeout"),
        ({"active": "yes"}, "active"),
        ({"metadata": {"a": "x" * 20_000}}, "metadata"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(api, given, place):
    reply = api.send(BASE, {"url": URL, "events": ["job.failed"]} | given)

    assert refusal(reply)["details"]["field"] == place
    assert WebhookSubscription.objects.count() == 0
    assert "short" not in reply.content.decode()
    if None not in given.values():
        hook = made(api)
        assert patch(api, hook, **given).status_code == 400
        assert api.see(f"{BASE}/{hook['id']}").json()["url"] == URL


def test_an_unencrypted_url_is_refused_unless_the_site_allows_it(api, settings):
    settings.OJS = settings.OJS | {"WEBHOOKS_ALLOW_HTTP": False}

    reply = api.send(BASE, {"url": "http://example.com/", "events": ["*"]})

    assert "https" in refusal(reply)["message"]
    with receiving() as receiver:
        made(api)
        WebhookSubscription.objects.update(url=receiver.at())
        complete_a_job(api)
        sent()
    assert receiver.received == []
    assert WebhookDelivery.objects.get().state == "dead"


def test_a_secret_is_shown_when_it_is_made_and_never_again(api, caplog):
    caplog.set_level(logging.DEBUG)
    hook = made(api)
    shown = made(api, secret="whk_test_secret_001")
    assert hook["secret"].startswith("whsec_") and shown["secret"] == "whk_test_secret_001"
    assert hook["secret"] != made(api)["secret"]
    path = f"{BASE}/{hook['id']}"
    rotated = api.send(f"{path}/rotate-secret").json()["secret"]

    replies = [
        api.see(BASE),
        api.see(path),
        patch(api, hook, events=["*"]),
        api.send(f"{path}/pause"),
        api.send(f"{path}/resume"),
        api.send(f"{path}/test"),
        api.see("webhooks/deliveries"),
        api.see("events"),
        api.delete(f"{V1}/{path}"),
    ]

    elsewhere = [*OperatorAction.objects.values_list("selection", flat=True), caplog.text]
    texts = [reply.content.decode() for reply in replies] + list(map(str, elsewhere))
    assert all(reply.status_code == 200 for reply in replies)
    for secret in (hook["secret"], rotated, shown["secret"]):
        assert not any(secret in text for text in texts)


def test_a_change_does_not_set_a_secret_or_what_there_is_not(api):
    """It would sign nothing: a secret is changed by rotation (OJS webhooks §8.3)."""
    hook = made(api)

    error = refusal(patch(api, hook, secret="whsec_of-our-own-making", active=False))
    assert error["details"]["field"] == "secret"
    assert "rotate-secret" in error["message"] and "whsec_" not in error["message"]
    assert refusal(patch(api, hook, bogus=1, active=False))["details"]["field"] == "bogus"

    row = WebhookSubscription.objects.get()
    assert (row.secret, row.active) == (hook["secret"], True)


def test_deliveries_are_signed_with_both_secrets_until_the_rotation_is_over(api):
    with receiving() as receiver:
        hook = made(api, receiver.at())
        path = f"{BASE}/{hook['id']}/rotate-secret"
        new = api.send(path, {"reason": "It may have leaked"}).json()
        complete_a_job(api)
        sent()
        WebhookSubscription.objects.update(previous_until=ago(1))
        complete_a_job(api)
        sent()
        api.send(path, {"secret": "whsec_of-our-own-making", "overlap": 0})
        complete_a_job(api)
        sent()

    secrets = (hook["secret"], new["secret"], "whsec_of-our-own-making")
    assert [[is_signed(each, *one) for each in secrets] for one in receiver.received] == [
        [True, True, False],
        [False, True, False],
        [False, False, True],
    ]
    assert "previous_secret_until" in new


@pytest.mark.parametrize("overlap", ["P99Y", "P31D", 31 * 86_400])
def test_a_secret_that_is_replaced_does_not_sign_for_years(api, overlap):
    path = f"{BASE}/{made(api)['id']}/rotate-secret"

    refused = refusal(api.send(path, {"overlap": overlap}))

    assert refused["details"]["field"] == "overlap"
    assert WebhookSubscription.objects.get().previous_until is None
    assert api.send(path, {"overlap": "P30D"}).status_code == 200


def test_a_project_has_subscriptions_of_its_own_to_the_events_of_its_jobs(settings):
    settings.OJS = settings.OJS | {"API_KEY_CACHE": 0}
    acme, other, everyone = (
        OJSClient(make_key(name or "all", project=name)[1]) for name in ("acme", "other", "")
    )
    theirs, all_of_them = made(acme, kinds=["*"]), made(everyone, kinds=["job.enqueued"])
    job_ids = [client.pushed() for client in (acme, other, everyone)]
    step = {"type": "a.b", "args": []}
    for project in ("acme", "other"):
        plan = plan_of({"type": "chain", "name": project, "steps": [step]}, clock.now())
        engine.create_workflow(plan, project=project)
    written()

    found = {
        name: {
            (each["event_type"], each["subject"])
            for each in everyone.see("webhooks/deliveries", subscription_id=name).json()[
                "deliveries"
            ]
        }
        for name in (theirs["id"], all_of_them["id"])
    }
    enqueued = {subject for kind, subject in found[theirs["id"]] if kind == "job.enqueued"}
    assert job_ids[0] in enqueued and not {*job_ids[1:]} & enqueued
    flows = [subject for kind, subject in found[theirs["id"]] if kind == "workflow.created"]
    assert len(flows) == 1
    assert {*job_ids} < {subject for _, subject in found[all_of_them["id"]]}
    assert not any(kind.startswith("webhook.") for kind, _ in found[theirs["id"]])

    (delivered, *_rest) = acme.see("webhooks/deliveries").json()["deliveries"]
    assert other.see(BASE).json()["subscriptions"] == []
    assert other.see("webhooks/deliveries").json()["deliveries"] == []
    assert len(everyone.see(BASE).json()["subscriptions"]) == 2
    one, sending = f"{V1}/{BASE}/{theirs['id']}", f"{V1}/webhooks/deliveries/{delivered['id']}"
    for path in (one, sending):
        assert acme.get(path).status_code == 200
        assert other.get(path).status_code == 404
    for path in (f"{one}/test", f"{one}/rotate-secret", f"{one}/pause", f"{sending}/retry"):
        assert other.post(path, b"", content_type=MEDIA_TYPE).status_code == 404
    assert other.delete(one).status_code == 404


def test_values_that_not_everyone_may_see_are_not_sent(api):
    made(api, kinds=["job.failed"])
    job_id = api.pushed()
    api.fetch()
    api.nack(job_id, message="login(password='hunter2') failed")
    written()

    assert "hunter2" not in WebhookDelivery.objects.get().body
    assert "login(password=" in WebhookDelivery.objects.get().body


def test_an_event_that_cannot_be_written_keeps_back_no_other(api, monkeypatch, caplog):
    made(api, kinds=["job.enqueued"])
    api.pushed(type="bad.one")
    good = api.pushed(type="good.one")

    def redact(document):
        if "bad.one" in str(document):
            raise RecursionError
        return document

    monkeypatch.setattr(fan_out, "redact_quotes", redact)

    written()
    written()

    assert [row.subject for row in WebhookDelivery.objects.all()] == [str(good)]
    assert caplog.text.count("is not sent to webhooks") == 1


def test_events_that_take_long_to_write_are_left_to_the_next_round(api, monkeypatch):
    made(api, kinds=["job.enqueued"])
    written()
    for _ in range(3):
        api.pushed()
    hours = count(step=3600)
    monkeypatch.setattr(pace, "now", lambda: next(hours))
    monkeypatch.setattr(fan_out, "BATCH", 1)

    found = []
    for _ in range(3):
        fan_out.fan_out()
        found.append(WebhookDelivery.objects.count())

    assert found == [1, 2, 3]


def test_events_are_read_once_and_lost_by_no_crash(api, monkeypatch):
    with receiving(200, 500) as receiver:
        made(api, receiver.at())
        complete_a_job(api)
        with monkeypatch.context() as broken:
            broken.setattr(fan_out, "_deliveries", lambda *rows: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                fan_out.fan_out()
        assert len(written()) == 1
        assert len(written()) == 1

        # A worker begins to send it, and dies.
        attempt = begun()
        assert deliveries.fetched(LocalClient("another")) == []
        deliveries.CARRYING.update(reserved_until=ago(1))
        reaper.sweep(["expired-reservations"])
        sent()
        # It was alive after all.
        delivery.note(delivery.send(attempt))

    assert len(receiver.received) == 2
    row = WebhookDelivery.objects.get()
    assert (row.state, row.tries) == ("delivered", 2)


def test_a_subscription_can_be_tested(api):
    with receiving(200, 500) as receiver:
        hook = made(api, receiver.at(), active=False)
        path = f"{BASE}/{hook['id']}/test"
        well, badly = api.send(path).json(), api.send(path).json()
    away = api.send(path).json()

    assert (well["success"], well["status_code"], well["response_body"]) == (True, 200, "noted")
    assert (badly["success"], badly["status_code"], badly["error"]) == (
        False,
        500,
        "HTTP 500: noted",
    )
    assert (away["success"], away["status_code"], away["response_body"]) == (False, None, None)
    assert is_signed(hook["secret"], *receiver.received[0])
    event = json.loads(receiver.received[0][1])
    assert (event["type"], event["subject"]) == ("webhook.test", hook["id"])
    states = [each["status"] for each in api.see("webhooks/deliveries").json()["deliveries"]]
    assert sorted(states) == ["dead", "dead", "delivered"]


def test_what_waits_for_a_paused_subscription_is_sent_when_it_is_resumed(api):
    with receiving() as receiver:
        hook = made(api, receiver.at())
        first = complete_a_job(api)
        written()
        assert not api.send(f"{BASE}/{hook['id']}/pause").json()["active"]
        complete_a_job(api)
        sent()
        assert receiver.received == []
        api.send(f"{BASE}/{hook['id']}/resume")
        last = complete_a_job(api)
        sent()

    subjects = {json.loads(body)["subject"] for _, body in receiver.received}
    assert subjects == {first, last}


def test_a_deleted_subscription_gets_nothing_more(api):
    with receiving() as receiver:
        hook = made(api, receiver.at())
        complete_a_job(api)
        written()
        attempt = begun()
        assert api.delete(f"{V1}/{BASE}/{hook['id']}").json() == {"deleted": True, "id": hook["id"]}
        delivery.note(delivery.send(attempt))
        complete_a_job(api)
        sent()

    assert len(receiver.received) == 1, "what was under way"
    assert WebhookDelivery.objects.count() == 0
    assert deliveries.CARRYING.get().state == "cancelled"
    assert RateLimit.objects.count() == 0
    assert api.see(f"{BASE}/{hook['id']}").status_code == 404
    kinds = Event.objects.filter(subject=hook["id"]).values_list("type", flat=True)
    assert set(kinds) == {"webhook.subscription.created", "webhook.subscription.deleted"}


def test_changes_are_in_the_audit_without_the_url(api):
    hook = made(api, "https://hooks.example.com/T0/secret-path")
    patch(api, hook, url="https://hooks.example.com/T1/secret-path", events=["job.*"])
    api.send(f"{BASE}/{hook['id']}/rotate-secret", {"reason": "Anna has left"})
    api.delete(f"{V1}/{BASE}/{hook['id']}")

    actions = OperatorAction.objects.filter(verb="manage_webhooks").order_by("pk")
    assert [each.target_kind for each in actions] == ["webhooksubscription"] * 4
    assert actions[1].selection["changed"] == ["events", "url"]
    assert actions[2].reason == "Anna has left"
    assert "secret-path" not in str([each.selection for each in actions])


def test_slow_subscriptions_leave_half_of_the_places_to_the_others():
    failing = WebhookSubscription.objects.create(url=URL, failing_since=ago(60))
    well = WebhookSubscription.objects.create(url=URL)
    slow = webhook_worker.SlowPlaces()
    with ExitStack() as first:
        first.enter_context(slow.place(failing, 32))
        with ExitStack() as others:
            for _ in range(15):
                others.enter_context(slow.place(failing, 32))
            with pytest.raises(Snooze), slow.place(failing, 32):
                pytest.fail("They have their share.")
            with slow.place(well, 32):
                slow.note(well, webhook_worker.SLOW + 1)
            with pytest.raises(Snooze), slow.place(well, 32):
                pytest.fail("It answers late, and is slow.")
        with slow.place(failing, 32), slow.place(well, 32):
            slow.note(well, 0.1)


def test_few_requests_to_a_subscription_are_under_way_and_one_if_it_is_failing(api):
    with receiving(*[500] * delivery_jobs.EACH) as receiver:
        made(api, receiver.at())
        for _ in range(9):
            complete_a_job(api)
        written()
        one, other = LocalClient("one"), LocalClient("other")
        at_once = deliveries.fetched(one)
        assert len(at_once) == delivery_jobs.EACH
        assert deliveries.fetched(other) == []
        for context in at_once:
            deliveries.run(one, context)

        assert len(deliveries.fetched(one)) == 1
        assert deliveries.fetched(other) == []
        deliveries.CARRYING.active().update(reserved_until=ago(1))
        reaper.sweep(["expired-reservations"])
        deliveries.end_pauses()
        deliveries.run_waiting()

    assert len(receiver.received) == 9 + delivery_jobs.EACH
    assert WebhookSubscription.objects.get().failing_since is None
    assert RateLimit.objects.get().policy == {"concurrency": delivery_jobs.EACH}


def test_a_delivery_is_carried_by_a_job_of_this_server(api):
    with receiving(500) as receiver:
        made(api, receiver.at(), ["*"])
        complete_a_job(api)
        written()
        row = WebhookDelivery.objects.get(event_type="job.completed")
        job = deliveries.CARRYING.get(pk=row.job_id)
        assert (job.type, job.args, job.state) == (WEBHOOK_JOB, [str(row.pk)], "available")
        deliveries.run_waiting()
        states = set(deliveries.CARRYING.values_list("state", flat=True))
        assert states == {"completed", "retryable"}
        sent()

    assert set(deliveries.CARRYING.values_list("state", flat=True)) == {"completed"}
    told = Event.objects.filter(queue=WEBHOOK_QUEUE).values_list("type", flat=True)
    assert {"job.enqueued", "job.completed", "job.retrying"} <= set(told)
    count = WebhookDelivery.objects.count()
    sent()
    assert WebhookDelivery.objects.count() == count, "and its events are not sent"


def test_deliveries_pause_with_their_queue(api):
    with receiving() as receiver:
        made(api, receiver.at())
        complete_a_job(api)
        written()
        assert api.send(f"queues/{WEBHOOK_QUEUE}/pause").status_code == 200
        sent()
        assert receiver.received == []
        api.send(f"queues/{WEBHOOK_QUEUE}/resume")
        sent()

    assert WebhookDelivery.objects.get().state == "delivered"


def test_a_delivery_that_its_job_has_lost_gets_another(api):
    with receiving() as receiver:
        made(api, receiver.at())
        for _ in range(4):
            complete_a_job(api)
        written()
        earlier, deleted, finished, cancelled = WebhookDelivery.objects.order_by("pk")
        # As a release that had no jobs for them wrote it, in an attempt of one of its processes.
        WebhookDelivery.objects.filter(pk=earlier.pk).update(job_id=None, next_try_at=ago(-300))
        deliveries.CARRYING.filter(pk__in=[earlier.job_id, deleted.job_id]).delete()
        deliveries.CARRYING.filter(pk=finished.job_id).update(state="discarded", finished_at=ago(1))
        engine.cancel(cancelled.job_id)

        reaper.sweep(["old-deliveries"])
        sent(pause_is_over=False)
        assert len(receiver.received) == 2
        sent()

    states = {each.pk: each.state for each in WebhookDelivery.objects.all()}
    assert states == {
        earlier.pk: "delivered",
        deleted.pk: "delivered",
        finished.pk: "delivered",
        cancelled.pk: "dead",
    }
    assert len(receiver.received) == 3


def test_the_end_of_a_delivery_that_its_job_has_lost_is_told_and_counted(api):
    with receiving(500) as receiver:
        hook = made(api, receiver.at())
        for _ in range(3):
            complete_a_job(api)
        written()
        cancelled, died, well = WebhookDelivery.objects.order_by("pk")
        engine.cancel(cancelled.job_id)
        WebhookDelivery.objects.filter(pk=died.pk).update(tries=delivery.TRIES)
        for row in (died, well):
            deliveries.CARRYING.filter(pk=row.job_id).update(state="discarded", finished_at=ago(1))

        reaper.sweep(["old-deliveries"])
        reaper.sweep(["old-deliveries"])

    told = Event.objects.filter(type="webhook.dead").order_by("id")
    assert {each.subject: each.data["error"] for each in told} == {
        cancelled.name: "Its job was cancelled.",
        died.name: "The last attempt did not come to its end.",
    }
    assert [each.data["tries"] for each in told] == [0, delivery.TRIES]
    assert {each.data["subscription_id"] for each in told} == {hook["id"]}
    text = metrics.exposition("")[0].decode()
    assert 'ojs_webhook_delivery_total{event_type="job.completed",status="dead"} 2.0' in text
    assert f'subscription_id="{hook["id"]}"}} 2.0' in text
    well.refresh_from_db()
    assert (well.state, well.job_id) == ("pending", None)


def test_a_delivery_that_is_sent_once_more_has_a_job_of_its_own(api):
    with receiving(500) as receiver:
        made(api, receiver.at())
        complete_a_job(api)
        sent()
        (row,) = WebhookDelivery.objects.all()
        assert api.send(f"webhooks/deliveries/{row.name}/retry").status_code == 200
        sent(pause_is_over=False)
        sent()

    assert len(receiver.received) == 2
    states = deliveries.CARRYING.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["cancelled", "completed"]


def test_an_attempt_from_before_it_is_sent_once_more_changes_nothing(api):
    with receiving(500, 200) as receiver:
        made(api, receiver.at())
        complete_a_job(api)
        written()
        old = begun()
        name = WebhookDelivery.objects.get().name
        assert api.send(f"webhooks/deliveries/{name}/retry").status_code == 200
        new = begun()
        assert (old.number, new.number) == (1, 1)
        delivery.note(delivery.send(old))
        row = WebhookDelivery.objects.get()
        assert (row.state, row.attempts) == ("pending", [])
        delivery.note(delivery.send(new))

    row.refresh_from_db()
    assert (row.state, len(row.attempts)) == ("delivered", 1)
    assert WebhookSubscription.objects.get().failing_since is None


def test_no_limit_of_a_tenant_holds_up_deliveries_and_maintenance_loses_none(settings):
    settings.OJS = settings.OJS | {"API_KEY_CACHE": 0, "MULTI_TENANCY": "required"}
    acme = OJSClient(make_key("acme", project="acme")[1])
    with receiving() as receiver:
        made(acme, receiver.at(), ["job.enqueued"])
        Tenant.objects.update_or_create(pk="acme", defaults={"max_concurrency": 0})
        Tenant.objects.update_or_create(pk="default", defaults={"max_concurrency": 0})
        acme.pushed()
        Maintenance.objects.create(since=ago(1), refuses_jobs=True)
        sent()
        assert receiver.received == []
        assert deliveries.CARRYING.count() == 1
        Maintenance.objects.all().delete()
        sent()

    assert len(receiver.received) == 1
    (job,) = deliveries.CARRYING.all()
    assert acme.get(f"{V1}/jobs/{job.pk}").status_code == 404, "it is nobody's"


def test_old_deliveries_are_deleted_and_a_hopeless_backlog_ends(api, monkeypatch):
    made(api, kinds=["job.enqueued"])
    for _ in range(3):
        api.pushed()
    written()
    keys = list(WebhookDelivery.objects.values_list("pk", flat=True))
    for key, (state, days) in zip(keys, (("delivered", 8), ("dead", 8), ("dead", 31)), strict=True):
        WebhookDelivery.objects.filter(pk=key).update(state=state, finished_at=ago(days * 86_400))

    assert delivery.prune() == 2
    assert WebhookDelivery.objects.get().pk == keys[1]

    WebhookDelivery.objects.update(state="pending")
    monkeypatch.setattr(delivery, "BACKLOG", 0)
    delivery.prune()
    assert WebhookSubscription.objects.get().active, "it is only slow"
    WebhookSubscription.objects.update(failing_since=ago(60))
    delivery.prune()
    assert not WebhookSubscription.objects.get().active


def test_attempts_are_counted(api):
    with receiving(500, 200, 404) as receiver:
        hook = made(api, receiver.at())
        complete_a_job(api)
        sent()
        sent()
        complete_a_job(api)
        sent()
    api.delete(f"{V1}/{BASE}/{hook['id']}")

    text = metrics.exposition("")[0].decode()
    for line in (
        'ojs_webhook_delivery_total{event_type="job.completed",status="success"} 1.0',
        'ojs_webhook_delivery_total{event_type="job.completed",status="failed"} 1.0',
        'ojs_webhook_delivery_total{event_type="job.completed",status="dead"} 1.0',
        'ojs_webhook_delivery_retry_count_bucket{event_type="job.completed",le="0.0"} 0.0',
        'ojs_webhook_delivery_retry_count_bucket{event_type="job.completed",le="1.0"} 1.0',
        "ojs_webhook_subscriptions 0.0",
    ):
        assert line in text
    assert f'subscription_id="{hook["id"]}"}} 1.0' in text


def test_a_receiver_that_has_never_accepted_anything_is_counted_beside_others(api):
    retried = 'ojs_webhook_delivery_retry_count_bucket{event_type="job.completed",le="0.0"} 1.0'
    with receiving(404, 404) as broken:
        made(api, broken.at())
        complete_a_job(api)
        sent()

        text = metrics.exposition("")[0].decode()
        assert 'ojs_webhook_delivery_total{event_type="job.completed",status="dead"} 1.0' in text
        assert retried not in text

        with receiving(200) as receiver:
            made(api, receiver.at())
            complete_a_job(api)
            sent()

    text = metrics.exposition("")[0].decode()
    assert 'ojs_webhook_delivery_total{event_type="job.completed",status="success"} 1.0' in text
    assert 'ojs_webhook_delivery_total{event_type="job.completed",status="dead"} 2.0' in text
    assert retried in text


def test_without_the_record_there_is_nothing_to_subscribe_to(api, settings):
    settings.OJS = settings.OJS | {"RECORD_EVENTS": False}

    assert api.send(BASE, {"url": URL, "events": ["*"]}).status_code == 501
    assert "urn:ojs:ext:webhooks" not in api.get("/ojs/manifest").json()["extensions"]


def test_lists_have_pages_and_filters(api):
    hooks = [made(api, kinds=["job.enqueued"]) for _ in range(3)]
    api.pushed()
    written()
    WebhookDelivery.objects.filter(subscription=subscriptions.find(hooks[0]["id"], "")).update(
        state="dead", finished_at=ago(1)
    )

    page = api.see(BASE, limit=2).json()
    rest = api.see(BASE, limit=2, cursor=page["pagination"]["next_cursor"]).json()
    found = [each["id"] for each in page["subscriptions"] + rest["subscriptions"]]
    assert found == [each["id"] for each in reversed(hooks)]
    (dead,) = api.see("webhooks/deliveries", status="dead").json()["deliveries"]
    assert dead["subscription_id"] == hooks[0]["id"]
    assert len(api.see("webhooks/deliveries", event_type="job.enqueued").json()["deliveries"]) == 3
    assert api.see("webhooks/deliveries", event_type="job.failed").json()["deliveries"] == []
    assert refusal(api.see("webhooks/deliveries", state="dead"))["details"]["field"] == "state"


def test_a_delivery_says_what_the_record_says(api):
    made(api, kinds=["job.enqueued"])
    job = JobFactory()
    event = events.job_event("job.enqueued", job, time=datetime(2026, 1, 2, tzinfo=UTC))
    event.save()
    written()

    (listed,) = api.see("events", subject=str(job.pk)).json()["events"]
    assert json.loads(WebhookDelivery.objects.get().body) == listed


def test_a_signature_is_as_old_as_its_attempt(api):
    with receiving(500) as receiver:
        made(api, receiver.at())
        complete_a_job(api)
        written()
        WebhookDelivery.objects.update(created_at=LONG_AGO)
        sent()
        sent()

    attempts = WebhookDelivery.objects.get().attempts
    assert len(attempts) == 2
    assert [int(headers["X-OJS-Timestamp"]) for headers, _ in receiver.received] == [
        int(datetime.fromisoformat(each["at"]).timestamp()) for each in attempts
    ]


@pytest.mark.parametrize("format", ["cloudevents", "cloudevents-binary"])
def test_a_subscription_gets_cloudevents_if_it_wants_them(api, settings, format):
    settings.OJS = settings.OJS | {"CLOUDEVENTS_SOURCE": "ojs://shop/prod"}
    with receiving(500) as receiver:
        hook = made(api, receiver.at(), format=format)
        assert hook["format"] == format
        job_id = complete_a_job(api)
        sent()
        sent()

    (headers, body), (same_headers, same_body) = receiver.received
    expected = {
        "specversion": "1.0",
        "type": "org.openjobspec.job.completed",
        "source": "ojs://shop/prod",
        "subject": job_id,
    }
    if format == "cloudevents":
        assert headers["Content-Type"] == "application/cloudevents+json"
        event = json.loads(body)
        assert event["datacontenttype"] == "application/json"
        data = event["data"]
    else:
        assert headers["Content-Type"] == "application/json"
        event = {name[3:]: text for name, text in headers.items() if name.startswith("ce-")}
        assert event["id"] == same_headers["ce-id"]
        data = json.loads(body)
    assert event.items() >= expected.items()
    assert data["job_id"] == job_id
    assert body == same_body
    assert is_signed(hook["secret"], headers, body)
