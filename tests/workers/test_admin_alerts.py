"""Alert rules, alerts and notifications in the admin."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.access.audit import of_shell
from jobs.engine import maintenance
from jobs.models import OperatorAction
from tests.factories import JobFactory, QueueFactory, ago
from tests.operators import answer, choose, confirm, forms, messages, operator, press, staff, viewer
from workers.alerts import evaluation
from workers.alerts.problems import KINDS
from workers.chores import reaper
from workers.models import Alert, AlertNotification, AlertRule

pytestmark = pytest.mark.django_db

RULES = "/admin/ojs_workers/alertrule/"
ALERTS = "/admin/ojs_workers/alert/"
DASHBOARD = "/admin/ojs_workers/dashboard/"


@pytest.fixture(autouse=True)
def running_reaper(db):
    reaper.sign_of_life("here:1")


def fill_in(client, url, **given):
    """Fill in the form of a rule, and save it."""
    page = client.get(url)
    fields = next(form for form in forms(page) if "begins_after" in form.fields).fields
    return client.post(url, fields | given | {"_save": "1"})


def rule(**given) -> AlertRule:
    given = {"name": "No worker", "limits": {"seconds": 0}, "ends_after": 0} | given
    return AlertRule.objects.create(**{"kind": "unserved_queues"} | given)


def open_alert(**given) -> Alert:
    QueueFactory(name="mail")
    JobFactory(queue="mail", created_at=ago(60))
    rule(**given)
    evaluation.evaluate()
    return Alert.objects.get()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_rule_of_each_kind_is_made_with_the_fields_that_fit_it(admin_client, kind):
    page = admin_client.get(f"{RULES}add/").content.decode()
    assert f'href="?kind={kind}"' in page

    reply = fill_in(admin_client, f"{RULES}add/?kind={kind}", name="New")

    assert reply.status_code == 302, reply.context["errors"]
    made = AlertRule.objects.get()
    proposed = KINDS[kind].terms().limits
    assert (made.kind, made.limits, made.ends_after) == (kind, proposed, 60)
    assert admin_client.get(f"{RULES}{made.pk}/change/").status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("emails", "ops@example.com, nobody", "“nobody” is not an e-mail address."),
        ("webhook_url", "ftp://example.com", "A URL begins with http:// or https://"),
        ("webhook_url", "http://127.0.0.1:8000/", "127.0.0.1 is not a public address."),
        ("timezone", "Mars/Olympus", "There is no such time zone."),
        ("queue", "No Queue", "This is not a valid queue name."),
        ("job_type", "No Type", "This is not a valid job type"),
        ("quiet_from", "22:00", "Quiet hours need a beginning and an end."),
        ("limit_minutes", "0", "greater than or equal to 1"),
        ("limit_percent", "100", "less than or equal to 99"),
        ("type", "t", "Choose a queue or a type, not both."),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_lost(
    admin_client, field, value, problem
):
    given = {"name": "New", "queue": "mail"} | {field: value}

    page = fill_in(admin_client, f"{RULES}add/?kind=error_rate", **given)

    text = page.content.decode()
    assert problem in text and 'value="New"' in text
    assert not AlertRule.objects.exists()


def test_a_secret_is_kept_until_it_is_replaced_or_removed_and_never_shown(admin_client):
    url = f"{RULES}add/?kind=unserved_queues"
    fill_in(
        admin_client, url, name="Hook", webhook_url="https://h.example/x", webhook_secret="s3cret"
    )
    made = AlertRule.objects.get()
    url = f"{RULES}{made.pk}/change/"

    fill_in(admin_client, url, name="Renamed", reason="A better name")
    made.refresh_from_db()
    assert (made.name, made.webhook_secret) == ("Renamed", "s3cret")
    assert "s3cret" not in admin_client.get(url).content.decode()
    assert not OperatorAction.objects.filter(selection__icontains="s3cret").exists()
    assert OperatorAction.objects.filter(verb="manage_alerts", reason="A better name").count() == 1

    fill_in(admin_client, url, forget_secret="on")
    made.refresh_from_db()
    assert made.webhook_secret == ""


def test_a_viewer_does_not_see_the_path_of_a_webhook():
    made = rule(webhook_url="https://hooks.example.com/T0/B0", webhook_secret="s3cret")

    page = staff("view_alertrule").get(f"{RULES}{made.pk}/change/").content.decode()

    assert "hooks.example.com" in page
    assert "T0/B0" not in page and "s3cret" not in page


def test_a_test_goes_to_every_receiver_and_begins_no_alert(admin_client):
    made = rule(emails="ops@example.com", job_type="alert.raised")
    page = admin_client.get(f"{RULES}{made.pk}/change/")

    page = answer(admin_client, press(admin_client, page, "test"))

    assert "2 notifications are sent within seconds" in page.content.decode()
    documents = [each.document for each in AlertNotification.objects.all()]
    assert [each["alerts"][0]["event"] for each in documents] == ["test", "test"]
    assert documents[0]["title"] == "Test: No worker"
    assert not Alert.objects.exists()
    assert OperatorAction.objects.get().selection["tested"] == ["No worker"]


def test_rules_are_disabled_enabled_and_deleted(admin_client):
    alert = open_alert()
    made = alert.rule

    confirm(admin_client, "ojs_workers_alertrule", "disable", made)
    assert not AlertRule.objects.get().enabled and not Alert.objects.begun().exists()
    confirm(admin_client, "ojs_workers_alertrule", "enable", made)
    assert AlertRule.objects.get().enabled
    page = confirm(admin_client, "ojs_workers_alertrule", "delete", made)
    assert "1 rule was deleted." in page.content.decode()
    assert not AlertRule.objects.exists() and not Alert.objects.exists()
    done = [action.selection for action in OperatorAction.objects.order_by("pk")]
    assert [sorted(each.keys() - {"ids"}) for each in done] == [
        ["disabled"],
        ["enabled"],
        ["deleted"],
    ]


def test_the_audit_has_only_the_rules_that_were_switched(admin_client):
    on, off = rule(), rule(name="Off", enabled=False)

    page = confirm(admin_client, "ojs_workers_alertrule", "enable", on, off)
    assert "1 rule was enabled. 1 was left as it is" in page.content.decode()
    confirm(admin_client, "ojs_workers_alertrule", "enable", on, off)

    (action,) = OperatorAction.objects.all()
    assert (action.count, action.selection["enabled"]) == (1, ["Off"])


def test_a_test_of_a_rule_without_receivers_says_that_it_has_none(admin_client):
    silent, heard = rule(name="Silent"), rule(name="Heard", emails="ops@example.com")

    page = confirm(admin_client, "ojs_workers_alertrule", "test", silent)
    assert messages(page) == ["1 rule has no receivers: no test of it was sent."]
    assert not OperatorAction.objects.exists()
    page = confirm(admin_client, "ojs_workers_alertrule", "test", silent, heard)

    (said,) = messages(page)
    assert said.startswith("1 notification is sent") and said.endswith("no test of it was sent.")
    assert OperatorAction.objects.get().selection["tested"] == ["Heard"]


def test_an_alert_is_acknowledged_by_an_operator_and_no_longer_an_error():
    alert, client = open_alert(), operator("view_dashboard")
    (line,) = client.get(DASHBOARD).context["attention"]
    assert line.text == "Jobs wait in “mail”, and no live worker serves it."
    assert line.alert.startswith("alert “No worker” for ")
    assert line.alert_url == reverse("admin:ojs_workers_alert_change", args=[alert.pk])

    page = choose(client, "ojs_workers_alert", "acknowledge", alert)
    page = answer(client, page, hours="4", reason="Known")

    assert "1 alert was acknowledged." in page.content.decode()
    alert.refresh_from_db()
    assert (alert.acknowledged_by, alert.reason, alert.is_acknowledged) == ("ops", "Known", True)
    (line,) = client.get(DASHBOARD).context["attention"]
    assert "acknowledged by ops" in line.alert
    assert OperatorAction.objects.get().verb == "acknowledge_alert"
    assert client.get(f"{RULES}add/").status_code == 403


def test_alerts_to_acknowledge_are_named_by_what_they_say_and_ended_ones_left_out():
    alert, client = open_alert(), operator("view_dashboard")
    ended = Alert.objects.get()
    ended.pk, ended.text, ended.ended_at = None, "It was over long ago.", ended.seen_at
    ended.save()

    page = choose(client, "ojs_workers_alert", "acknowledge", alert, ended)

    content = page.content.decode()
    assert "Jobs wait in “mail”, and no live worker serves it." in content
    assert "It was over long ago." not in content
    assert "1 of them is not open, and is left out." in content


def test_an_alert_that_the_dashboard_does_not_list_has_a_line_of_its_own(admin_client):
    alert = open_alert()
    Alert.objects.update(kind="error_rate", subject="", text="40 % of 10 attempts failed.")

    texts = [item.text for item in admin_client.get(DASHBOARD).context["attention"]]

    assert "40 % of 10 attempts failed." in texts
    page = admin_client.get(f"{ALERTS}{alert.pk}/change/").content.decode()
    assert "40 % of 10 attempts failed." in page


def test_a_failed_delivery_is_shown_at_the_alert_the_rule_and_in_a_list(admin_client):
    alert = open_alert(emails="ops@example.com")
    note = AlertNotification.objects.get()
    AlertNotification.objects.update(tries=2, last_error="Connection refused")

    for url in (
        f"{ALERTS}{alert.pk}/change/",
        f"{RULES}{alert.rule_id}/change/",
        RULES,
        "/admin/ojs_workers/alertnotification/?state=waiting",
        f"/admin/ojs_workers/alertnotification/{note.pk}/change/",
    ):
        assert "Connection refused" in admin_client.get(url).content.decode(), url
    for state in ("open", "acknowledged", "pending", "ended"):
        assert admin_client.get(f"{ALERTS}?state={state}").status_code == 200


def test_an_alert_has_no_link_to_a_page_that_its_reader_may_not_view(admin_client):
    maintenance.begin(actor=of_shell())
    rule(kind="maintenance_mode", limits={})
    evaluation.evaluate()
    page, switch = f"{ALERTS}{Alert.objects.get().pk}/change/", "/admin/ojs_jobs/maintenance/"
    reader = viewer()

    assert f'href="{switch}"' in admin_client.get(page).content.decode()
    assert reader.get(switch).status_code == 403
    shown = reader.get(page).content.decode()
    assert switch not in shown and "maintenance mode" in shown


def test_a_line_of_an_alert_leads_to_what_it_is_about(admin_client):
    """A rule about a queue: the dashboard lists types by themselves only."""
    alert = open_alert()
    link = {"model": "ojs_workers.dashboard", "page": "breakdown"}
    link["query"] = {"by": "queue", "name": "mail"}
    Alert.objects.update(kind="error_rate", subject="mail", text="40 % failed.", link=link)

    lines = admin_client.get(DASHBOARD).context["attention"]

    (line,) = [each for each in lines if each.text == "40 % failed."]
    assert line.url == f"{DASHBOARD}breakdown/?by=queue&name=mail"
    page = admin_client.get(f"{ALERTS}{alert.pk}/change/").content.decode()
    assert f'<a href="{DASHBOARD}breakdown/?by=queue&amp;name=mail">mail</a>' in page


@pytest.mark.parametrize(
    ("kind", "limits", "scope", "words"),
    [
        ("dead_workers", {}, {}, "at least 1 worker; within the last 15 min"),
        (
            "error_rate",
            {},
            {"queue": "mail"},
            "more than 10 % fail; within the last 15 min; of at least 20 attempts; queue: mail",
        ),
        ("growing_dead_letter", {"jobs": 3}, {}, "by at least 3 jobs; within the last 60 min"),
    ],
)
def test_the_list_says_in_words_when_a_rule_raises_an_alert(
    admin_client, kind, limits, scope, words
):
    AlertRule.objects.create(name="A", kind=kind, limits=limits, **scope)

    assert words in admin_client.get(RULES).content.decode()


def test_the_list_says_it_in_the_readers_language(admin_client):
    AlertRule.objects.create(name="A", kind="error_rate", queue="mail")

    page = admin_client.get(RULES, headers={"Accept-Language": "de"}).content.decode()

    assert "mehr als 10 % schlagen fehl" in page and "Warteschlange: mail" in page
