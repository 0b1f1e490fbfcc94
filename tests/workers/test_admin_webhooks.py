"""Webhook subscriptions and deliveries in the admin."""

from __future__ import annotations

import pytest
from django.contrib.admin import site
from django.utils.html import strip_tags

from jobs.access.audit import of_shell
from jobs.http.authentication import make_key
from jobs.models import OperatorAction
from jobs.record import rollup
from jobs.spec.reserved import WEBHOOK_JOB, WEBHOOK_QUEUE
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago
from tests.operators import answer, buttons, choose, confirm, forms, messages, press, staff
from tests.workers.receiver import receiving
from workers.admin.webhook import WebhookSubscriptionAdmin
from workers.chores import reaper
from workers.models import WebhookDelivery, WebhookSubscription
from workers.webhooks import subscriptions

pytestmark = pytest.mark.django_db

HOOKS = "/admin/ojs_workers/webhooksubscription/"
DELIVERIES = "/admin/ojs_workers/webhookdelivery/"
URL = "https://hooks.example.com/T0/B0"


@pytest.fixture(autouse=True)
def running_reaper(db):
    reaper.sign_of_life("here:1")


def fill_in(client, page, **given):
    fields = next(form for form in forms(client.get(page)) if "timeout" in form.fields).fields
    return client.post(page, fields | given | {"_save": "1"})


def made(**given) -> WebhookSubscription:
    columns = {"url": URL, "events": ["job.*"], "queues": ["mail"]} | given
    return subscriptions.create(of_shell(), columns)


def delivered(subscription, **given) -> WebhookDelivery:
    now = ago(60)
    columns = {"event_id": "evt_1", "event_type": "job.failed", "body": '{"a": "of the event"}'}
    return WebhookDelivery.objects.create(
        subscription=subscription, created_at=now, next_try_at=now, **columns | given
    )


def test_a_subscription_is_made_in_a_form_and_its_secret_shown_once(admin_client):
    make_key("a", project="acme")

    page = fill_in(
        admin_client,
        f"{HOOKS}add/",
        url=URL,
        events="job.failed\nworkflow.*",
        job_types="mail.*",
        project="acme",
        reason="For the partner",
    )

    row = WebhookSubscription.objects.get()
    assert (row.url, row.events, row.job_types) == (URL, ["job.failed", "workflow.*"], ["mail.*"])
    assert (row.project, row.created_by, row.active) == ("acme", "admin", True)
    assert row.secret in page.content.decode()
    for url in (HOOKS, f"{HOOKS}{row.pk}/change/", f"{HOOKS}{row.pk}/history/"):
        assert row.secret not in admin_client.get(url).content.decode()
    action = OperatorAction.objects.get()
    assert (action.verb, action.reason) == ("manage_webhooks", "For the partner")


def test_reloading_the_page_with_the_secret_makes_no_other_subscription(admin_client):
    page = f"{HOOKS}add/"
    fields = next(form for form in forms(admin_client.get(page)) if "timeout" in form.fields).fields
    fields |= {"url": URL, "events": "job.failed", "_save": "1"}
    first = admin_client.post(page, fields)

    again = admin_client.post(page, fields, follow=True)

    row = WebhookSubscription.objects.get()
    assert row.secret in first.content.decode()
    assert row.secret not in again.content.decode()
    assert messages(again)[0].startswith("This subscription was made already")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "http://example.com/"}, "https"),
        ({"url": "https://127.0.0.1/"}, "not a public address"),
        ({"events": "job.fail"}, "job.failed"),
        ({"timeout": "4"}, "5"),
    ],
)
def test_a_form_says_what_is_wrong(admin_client, given, problem):
    page = fill_in(admin_client, f"{HOOKS}add/", **{"url": URL, "events": "*"} | given)

    assert problem in str(page.context["errors"])
    assert not WebhookSubscription.objects.exists()


def test_a_subscription_is_changed_and_keeps_its_secret(admin_client):
    row = made()

    fill_in(admin_client, f"{HOOKS}{row.pk}/change/", events="*", queues="", timeout="10")

    changed = WebhookSubscription.objects.get()
    assert (changed.events, changed.queues, changed.timeout) == (["*"], [], 10)
    assert (changed.secret, changed.url) == (row.secret, URL)
    assert OperatorAction.objects.filter(verb="manage_webhooks").count() == 2


def test_a_viewer_sees_neither_the_path_nor_what_is_hidden(admin_client):
    row = made(metadata={"owner": "platform-team"})
    one = delivered(row)
    viewer = staff("view_webhooksubscription", "view_webhookdelivery")

    pages = {
        url: viewer.get(url).content.decode()
        for url in (
            HOOKS,
            f"{HOOKS}{row.pk}/change/",
            f"{HOOKS}?q=T0",
            DELIVERIES,
            f"{DELIVERIES}{one.pk}/change/",
        )
    }

    assert all("hooks.example.com" in page for url, page in pages.items() if "?q" not in url)
    assert not any("T0/B0" in page or row.secret in page for page in pages.values())
    assert f"{row.pk}/change" not in pages[f"{HOOKS}?q=T0"], "or it could be guessed"
    assert "of the event" in pages[f"{DELIVERIES}{one.pk}/change/"]
    assert buttons(viewer.get(f"{HOOKS}{row.pk}/change/")) == []
    assert T0_IS_SHOWN in admin_client.get(f"{HOOKS}{row.pk}/change/").content.decode()


T0_IS_SHOWN = "T0/B0"


@pytest.mark.parametrize(
    ("model", "column"),
    [
        ("ojs_workers/webhooksubscription", "secret"),
        ("ojs_workers/webhooksubscription", "previous_secret"),
        ("ojs_workers/webhooksubscription", "url"),
        ("ojs_workers/alertrule", "webhook_secret"),
        ("ojs_workers/alertrule", "webhook_url"),
        ("ojs_jobs/apikey", "digest"),
        ("ojs_jobs/apikey", "previous_digest"),
        ("ojs_jobs/job", "unique_key"),
        ("ojs_jobs/job", "args"),
    ],
)
def test_no_list_lets_its_reader_guess_what_no_page_shows(admin_client, model, column):
    page = admin_client.get(f"/admin/{model}/", {f"{column}__startswith": "a"})

    assert page.status_code == 400


def test_a_new_secret_is_shown_once(admin_client):
    row = made()
    page = press(admin_client, admin_client.get(f"{HOOKS}{row.pk}/change/"), "rotate")

    page = answer(admin_client, page, overlap="1", reason="It may have leaked")

    rotated = WebhookSubscription.objects.get()
    assert rotated.previous_secret == row.secret != rotated.secret
    assert rotated.secret in page.content.decode() and rotated.has_two_secrets
    shown = admin_client.get(f"{HOOKS}{row.pk}/change/").content.decode()
    assert "two secrets until" in shown and rotated.secret not in shown


def test_the_list_marks_what_is_wrong_with_a_subscription(admin_client):
    def marks():
        rows = admin_client.get(HOOKS).context["cl"].result_list
        page = WebhookSubscriptionAdmin(WebhookSubscription, site)
        return {row.host.partition(".")[0]: strip_tags(page.state(row)) for row in rows}

    for name, given in {
        "well": {},
        "off": {"active": False, "disabled_reason": "Nothing reached it."},
        "paused": {"active": False},
        "down": {"failing_since": ago(7290)},
        "picky": {},
    }.items():
        row = made(url=f"https://{name}.example.com/")
        WebhookSubscription.objects.filter(pk=row.pk).update(**given)
    delivered(row, state="dead", finished_at=ago(60))

    assert marks() == {
        "well": "active",
        "off": "disabled Nothing reached it.",
        "paused": "paused",
        "down": "failing",
        "picky": "losing deliveries",
    }
    WebhookDelivery.objects.update(finished_at=ago(4000))
    assert marks()["picky"] == "active"


def test_the_dashboard_names_webhooks_among_what_fails(admin_client):
    QueueFactory(name=WEBHOOK_QUEUE)
    JobErrorFactory(job=JobFactory(type=WEBHOOK_JOB, queue=WEBHOOK_QUEUE), occurred_at=ago(60))
    rollup.roll_up()

    (row,) = admin_client.get("/admin/ojs_workers/dashboard/").context["failing"]["rows"]

    assert (row.type, row.url) == (WEBHOOK_JOB, HOOKS)


def test_the_form_for_a_new_secret_makes_one_however_often_it_is_sent(admin_client):
    """Reloading the page that shows the secret sends the form again."""
    row = made()
    form = press(admin_client, admin_client.get(f"{HOOKS}{row.pk}/change/"), "rotate")
    answer(admin_client, form, overlap="0")
    secret = WebhookSubscription.objects.get().secret

    again = answer(admin_client, form, overlap="0")

    assert messages(again)[0].startswith("It has been given a new secret")
    assert WebhookSubscription.objects.get().secret == secret
    assert secret not in again.content.decode()


def test_a_test_reports_what_the_receiver_answered(admin_client, settings):
    settings.OJS = settings.OJS | {
        "OUTBOUND_NETWORKS": ["127.0.0.1"],
        "WEBHOOKS_ALLOW_HTTP": True,
    }
    with receiving(200, 500) as receiver:
        row = made(url=receiver.at())
        said = [
            messages(confirm(admin_client, "ojs_workers_webhooksubscription", "test", row))
            for _ in range(2)
        ]

    assert said == [["The receiver answered with status 200."], ["It failed: HTTP 500: noted"]]
    page = admin_client.get(f"{HOOKS}{row.pk}/change/").content.decode()
    assert "webhook.test" in page and "HTTP 500: noted" in page


def test_subscriptions_are_paused_resumed_and_deleted(admin_client):
    row, other = made(), made(active=False)
    model = "ojs_workers_webhooksubscription"

    confirm(admin_client, model, "pause", row, other)
    assert WebhookSubscription.objects.active().count() == 0
    confirm(admin_client, model, "resume", row)
    assert [each.pk for each in WebhookSubscription.objects.active()] == [row.pk]
    confirm(admin_client, model, "delete", row, other, reason="Test orders")

    assert not WebhookSubscription.objects.exists()
    assert OperatorAction.objects.filter(reason="Test orders").count() == 2


def test_a_pause_that_is_confirmed_twice_is_done_and_recorded_once(admin_client):
    row, model = made(), "ojs_workers_webhooksubscription"
    before = OperatorAction.objects.count()

    for action in ("pause", "resume"):
        page = choose(admin_client, model, action, row)
        assert messages(answer(admin_client, page)) == ["1 subscription was changed."]
        (said,) = messages(answer(admin_client, page))
        assert said.startswith("0 subscriptions were changed. 1 was left as it is")

    assert OperatorAction.objects.count() == before + 2


def test_deliveries_to_send_again_are_counted_and_named(admin_client):
    row = made()
    dead = [delivered(row, state="dead", event_id=f"evt_{number}") for number in range(2)]

    page = choose(admin_client, "ojs_workers_webhookdelivery", "replay", *dead)

    content = page.content.decode()
    assert "2 deliveries" in content
    assert f"job.failed → hooks.example.com ({dead[0].name})" in content


def test_a_dead_delivery_is_sent_again_unless_its_subscription_is_paused(admin_client):
    row, paused = made(), made(active=False)
    one, other = (
        delivered(each, state="dead", tries=8, finished_at=ago(9)) for each in (row, paused)
    )

    page = confirm(admin_client, "ojs_workers_webhookdelivery", "replay", one, other)

    one.refresh_from_db()
    other.refresh_from_db()
    assert (one.state, one.tries, one.finished_at) == ("pending", 0, None)
    assert (other.state, other.tries) == ("dead", 8)
    assert messages(page) == [
        "1 delivery will be sent within seconds. 1 was left as it is: its state does not allow it."
    ]


def test_the_page_says_how_many_of_the_latest_deliveries_are_dead(admin_client):
    """A receiver that answers 404 works, so the subscription is active all the same."""
    row = made()
    url = f"{HOOKS}{row.pk}/change/"
    for number in range(3):
        delivered(row, event_id=f"evt_{number}", state="dead", finished_at=ago(30))
    delivered(row, event_id="evt_3", state="delivered", finished_at=ago(30))

    page = admin_client.get(url).content.decode()

    query = f"?subscription__id__exact={row.pk}&amp;state__exact=dead"
    assert f'<a href="{DELIVERIES}{query}">3 of the latest 4</a>' in page


def test_an_error_that_is_cut_off_says_so(admin_client):
    tried = {"at": ago(30).isoformat(), "duration_ms": 5, "error": "x" * 200}
    delivered(made(), attempts=[tried])

    assert "x" * 99 + "…<" in admin_client.get(DELIVERIES).content.decode()
