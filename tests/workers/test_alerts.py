"""Alert rules: when alerts begin and end, quiet hours, and what is sent."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime, time, timedelta

import django
import pytest
from django.core import mail
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models import F

from jobs.conf import ojs_settings
from jobs.models import Job, Queue, QueueRollup, RollupMark
from jobs.record import rollup
from tests.concurrency.threads import together
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, WorkerFactory, ago, ahead
from tests.workers.receiver import answering, receiving
from workers.alerts import delivery, evaluation, problems, situation, watch
from workers.alerts.quiet_hours import is_quiet
from workers.alerts.situation import Situation
from workers.chores import reaper
from workers.models import Alert, AlertNotification, AlertRule, Reaper, Worker

pytestmark = pytest.mark.django_db


def rule(kind: str = "unserved_queues", **given) -> AlertRule:
    given = {"ends_after": 0, "limits": {"seconds": 0}, "emails": "ops@example.com"} | given
    return AlertRule.objects.create(name=given.pop("name", kind), kind=kind, **given)


def waiting(queue: str = "mail", seconds: float = 60) -> None:
    Queue.objects.get_or_create(name=queue)
    JobFactory(queue=queue, created_at=ago(seconds))


def checked() -> list[str]:
    """The titles of the notifications that a check of all rules adds."""
    before = AlertNotification.objects.count()
    # As if time had passed since the last check.
    for moment in ("since", "seen_at", "over_since", "began_at"):
        Alert.objects.update(**{moment: F(moment) - timedelta(seconds=10)})
    evaluation.evaluate()
    return [each.document["title"] for each in AlertNotification.objects.order_by("pk")[before:]]


def test_an_alert_is_announced_once_when_it_begins_and_once_when_it_ends():
    rule()
    waiting()

    assert checked() == ["Began: Jobs wait in “mail”, and no live worker serves it."]
    assert checked() == []
    waiting("web")
    assert checked() == ["Began: Jobs wait in “web”, and no live worker serves it."]
    WorkerFactory(queues=["mail", "web"])
    assert checked() == ["unserved_queues: 2 ended"]
    assert checked() == []
    assert Alert.objects.begun().count() == 0

    # What comes back is a new alert.
    Job.objects.filter(queue="web").update(queue="lost")
    QueueFactory(name="lost")
    assert checked() == ["Began: Jobs wait in “lost”, and no live worker serves it."]


def test_what_does_not_last_is_no_alert_and_what_flaps_is_one():
    rule(begins_after=15, ends_after=15)
    waiting()

    assert checked() == []
    Job.objects.update(queue="other")  # a queue without a row: nothing waits in a known one
    assert checked() == []
    assert not Alert.objects.exists()

    Job.objects.update(queue="mail")
    assert [checked(), checked()] == [[], []]
    assert len(checked()) == 1
    Job.objects.update(queue="other")
    assert checked() == []
    Job.objects.update(queue="mail")
    assert [checked(), checked()] == [[], []]
    Job.objects.update(queue="other")
    assert [checked(), checked()] == [[], []]
    assert checked() == ["Ended: Jobs wait in “mail”, and no live worker serves it."]


@pytest.mark.django_db(transaction=True)
def test_however_many_processes_check_an_alert_begins_and_ends_once():
    rule()
    for queue in ("a", "b", "c"):
        waiting(queue)

    together(*[evaluation.evaluate] * 4)
    assert Alert.objects.begun().count() == 3
    assert AlertNotification.objects.count() == 1
    Job.objects.all().delete()
    Alert.objects.update(seen_at=ago(10))
    together(*[evaluation.evaluate] * 4)
    assert Alert.objects.ended().count() == 3
    assert AlertNotification.objects.count() == 2

    together(*[delivery.deliver_due] * 4)
    # The end comes after the beginning, each once.
    delivery.deliver_due()
    assert [message.subject for message in mail.outbox] == [
        "[OJS] unserved_queues: 3 began",
        "[OJS] unserved_queues: 3 ended",
    ]


def found(kind: str, *, limits: dict[str, int] | None = None, **scope: str) -> list[str]:
    kind_ = problems.KINDS[kind]
    return [each.text for each in kind_(Situation(), kind_.terms(limits or {}, **scope))]


def test_workers_that_are_alike_are_each_counted():
    alike = WorkerFactory.create_batch(2, queues=["mail"], concurrency=4, job_versions={"a": [1]})
    WorkerFactory(queues=["mail", "sms"], concurrency=3, state="quiet")
    WorkerFactory(queues=["mail"], concurrency=None, died_at=ago(60))  # and came back
    died = ago(60)
    WorkerFactory.create_batch(2, dead=True, died_at=died)
    WorkerFactory(dead=True, died_at=ago(7200))
    for worker in alike:
        JobFactory.create_batch(2, active=True, reserved_by=worker.pk)
    QueueFactory(name="mail")

    fleet = Situation()

    assert fleet.workers == {"running": 3, "quiet": 1, "dead": 3}
    assert (fleet.busy, fleet.capacity) == (4, 4 + 4 + ojs_settings.CONCURRENCY)
    assert [row.workers for row in fleet.queue("mail")] == [3]
    assert sorted(map(str, fleet.versions_taken_in("mail"))) == ["{'a': [1]}", "{'a': [1]}", "{}"]
    assert found("dead_workers", limits={"minutes": 15}) == ["2 workers are dead."]


def test_of_very_many_queues_those_that_may_be_in_trouble_are_looked_at(monkeypatch):
    monkeypatch.setattr(situation, "MOST_QUEUES", 3)
    for number in range(5):
        QueueFactory(name=f"idle-{number}")
    QueueFactory(name="paused", paused_at=ago(7290))
    waiting("deep", 5)
    JobFactory.create_batch(9, queue="deep")
    waiting("old", 9000)
    waiting("other", 700)
    rollup.sample()

    assert [row.queue.pk for row in Situation().queues] == ["deep", "old", "paused"]
    (text,) = found("paused_queues")
    assert "“paused”" in text
    (text,) = found("long_waits", limits={"seconds": 600})
    assert "“old”" in text
    (text,) = found("long_waits", limits={"seconds": 600}, queue="other")
    assert "“other”" in text


def test_each_kind_has_limits_and_a_scope_of_its_own():
    QueueFactory(name="web", paused_at=ago(7290))
    waiting("mail", 400)
    waiting("slow", 7290)
    waiting("web", 7290)
    JobFactory(queue="slow", project="shop", created_at=ago(500))
    WorkerFactory(queues=["slow"])
    WorkerFactory(dead=True, died_at=ago(1000))
    JobFactory(dead=True, queue="mail", project="shop", finished_at=ago(100))
    JobFactory(dead=True, queue="web", finished_at=ago(100))

    assert found("long_waits", limits={"seconds": 600}) == [
        "A job has been waiting in “slow” for 2 h 1 min."
    ]
    assert len(found("long_waits", limits={"seconds": 300})) == 2
    assert found("long_waits", limits={"seconds": 300}, queue="mail") == [
        "A job has been waiting in “mail” for 6 min 40 s."
    ]
    assert found("long_waits", project="shop") == [
        "A job has been waiting in “slow” for 8 min 20 s."
    ]
    assert found("unserved_queues", limits={"seconds": 600}, queue="mail") == []
    assert found("paused_queues", limits={"minutes": 180}) == []
    assert len(found("paused_queues", limits={"minutes": 60})) == 1
    assert found("dead_workers", limits={"minutes": 15}) == []
    assert found("dead_workers", limits={"minutes": 60}) == ["1 worker is dead."]
    assert found("growing_dead_letter", limits={"jobs": 3}) == []
    assert found("growing_dead_letter", project="shop") == [
        "1 job went to the dead letter in the last 1 h. (shop)"
    ]
    assert found("silent_reaper") == ["The reaper has never run: start “manage.py runreaper”."]


def test_the_error_rate_is_that_of_the_roll_ups_and_needs_enough_attempts():
    for _ in range(6):
        done = JobFactory(completed=True, queue="mail", finished_at=ago(200))
    for _ in range(4):
        JobErrorFactory(job=done, occurred_at=ago(200))
    rollup.roll_up()
    assert QueueRollup.objects.filter(queue="mail", resolution=60).exists()
    enough = {"attempts": 10, "percent": 30}

    assert found("error_rate", limits=enough) == [
        "40.0 % of 10 attempts failed in the last 15 minutes."
    ]
    assert found("error_rate", limits=enough, type="email.send") == [
        "40.0 % of 10 attempts of “email.send” failed in the last 15 minutes."
    ]
    kind = problems.KINDS["error_rate"]
    (problem,) = kind(Situation(), kind.terms(enough, queue="mail"))
    assert (problem.link.page, problem.link.query) == ("breakdown", {"by": "queue", "name": "mail"})
    assert found("error_rate", limits=enough | {"attempts": 11}) == []
    assert found("error_rate", limits=enough | {"percent": 40}) == []
    assert found("error_rate", limits=enough, queue="web") == []
    # Figures that are no longer updated say nothing about now.
    RollupMark.objects.update(until=ago(3600))
    assert found("error_rate", limits=enough) == []


@pytest.mark.parametrize(
    ("begin", "end", "zone", "moment", "expected"),
    [
        ("22:00", "07:00", "UTC", "2026-03-01T23:30+00:00", True),
        ("22:00", "07:00", "UTC", "2026-03-01T06:59+00:00", True),
        ("22:00", "07:00", "UTC", "2026-03-01T07:00+00:00", False),
        ("22:00", "07:00", "UTC", "2026-03-01T12:00+00:00", False),
        ("12:00", "13:00", "UTC", "2026-03-01T12:30+00:00", True),
        ("12:00", "13:00", "UTC", "2026-03-01T23:30+00:00", False),
        # Half past ten in the evening in Tokyo, and in New York after the clocks changed.
        ("22:00", "07:00", "Asia/Tokyo", "2026-03-01T13:30+00:00", True),
        ("22:00", "07:00", "Asia/Tokyo", "2026-03-01T23:30+00:00", False),
        ("22:00", "07:00", "America/New_York", "2026-03-07T02:30+00:00", False),
        ("22:00", "07:00", "America/New_York", "2026-03-10T02:30+00:00", True),
    ],
)
def test_quiet_hours_have_a_time_zone_and_cross_midnight(begin, end, zone, moment, expected):
    quiet = AlertRule(
        quiet_from=time.fromisoformat(begin), quiet_until=time.fromisoformat(end), timezone=zone
    )
    at = datetime.fromisoformat(moment)

    assert is_quiet(quiet, at) is expected
    quiet.is_critical = True
    assert not is_quiet(quiet, at)


def test_what_still_lasts_after_quiet_hours_is_reported_in_one_notification():
    now = datetime.now(UTC)
    quiet = {
        "timezone": "UTC",
        "quiet_from": (now - timedelta(hours=2)).time(),
        "quiet_until": (now + timedelta(hours=2)).time(),
    }
    held = rule(**quiet)
    rule(name="critical", is_critical=True, emails="", job_type="alert.raised", **quiet)
    for queue in ("brief", "a", "b"):
        waiting(queue)

    assert checked() == ["critical: 3 began"]
    Job.objects.filter(queue="brief").delete()
    assert checked() == ["Ended: Jobs wait in “brief”, and no live worker serves it."]
    assert Alert.objects.filter(rule=held).begun().count() == 2, "the admin shows them"

    over = (now - timedelta(hours=1)).time()
    AlertRule.objects.filter(pk=held.pk).update(quiet_until=over)
    assert checked() == ["unserved_queues: 2 began"]
    assert checked() == []


def test_an_acknowledged_alert_is_announced_again_only_when_its_time_is_over():
    now = datetime.now(UTC)
    noted = rule()
    waiting()
    assert len(checked()) == 1
    (alert,) = Alert.objects.all()

    assert evaluation.acknowledge([alert.pk], who="ann", until=ahead(3600), reason="Known") == 1
    assert checked() == []
    Alert.objects.update(acknowledged_until=ago(1))
    assert checked() == ["Began: Jobs wait in “mail”, and no live worker serves it."]
    assert Alert.objects.get().acknowledged_at is None

    # Acknowledged before anyone heard of it: not announced, and neither is its end.
    Alert.objects.update(announced="")
    evaluation.acknowledge([alert.pk], who="ann")
    assert checked() == []
    Job.objects.all().delete()
    assert checked() == []
    assert Alert.objects.get().ended_at >= now
    assert evaluation.acknowledge([alert.pk], who="ann") == 0
    assert noted.alerts.count() == 1


def test_the_alerts_of_a_disabled_rule_end():
    one = rule()
    waiting()
    checked()

    assert evaluation.switch([one], on=False) == [one]
    assert evaluation.switch([one], on=False) == []

    assert checked() == []
    titles = [each.document["title"] for each in AlertNotification.objects.order_by("pk")]
    assert titles[1:] == ["Ended: The rule was disabled."]


def test_a_rule_of_a_later_release_is_left_alone():
    rule("of_the_future")
    rule()
    waiting()

    assert len(checked()) == 1


def test_an_email_says_what_and_where(settings):
    settings.OJS = settings.OJS | {"SITE_URL": "https://jobs.example.com/"}
    one = rule(emails="a@example.com\nb@example.com", timezone="Europe/Berlin")
    waiting()
    checked()

    assert delivery.deliver_due() == 1
    assert delivery.deliver_due() == 0

    (message,) = mail.outbox
    assert message.to == ["a@example.com", "b@example.com"]
    assert message.subject == "[OJS] Began: Jobs wait in “mail”, and no live worker serves it."
    lines = message.body.splitlines()
    assert lines[0] == "Began: Jobs wait in “mail”, and no live worker serves it."
    assert lines[1].startswith("  Began: ") and lines[1].endswith(("CET", "CEST"))
    alert = Alert.objects.get()
    assert f"  https://jobs.example.com/admin/ojs_workers/alert/{alert.pk}/change/" in lines
    assert f"https://jobs.example.com/admin/ojs_workers/alertrule/{one.pk}/change/" in lines


def test_a_webhook_is_signed_and_tried_again_until_it_is_accepted(settings):
    settings.OJS = settings.OJS | {"OUTBOUND_NETWORKS": ["127.0.0.1"]}
    with receiving(500, 302) as receiver:
        rule(emails="", webhook_url=receiver.at(), webhook_secret="s3cret")
        waiting()
        checked()
        errors = []
        for _ in range(3):
            assert delivery.deliver_due() in (0, 1)
            note = AlertNotification.objects.get()
            errors.append(note.last_error)
            assert delivery.deliver_due() == 0, "not before its pause is over"
            AlertNotification.objects.update(next_try_at=ago(1))
        assert delivery.deliver_due() == 0, "it was sent"

    assert errors == ["HTTP 500: noted", "HTTP 302: noted", ""]
    assert (note.tries, note.sent_at is not None) == (3, True)
    assert len({body for _, body in receiver.received}) == 1
    for headers, body in receiver.received:
        stamp, _, code = headers["X-OJS-Signature"].partition(",v1=")
        signed = stamp.removeprefix("t=").encode() + b"." + body
        assert hmac.compare_digest(code, hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest())
        assert headers["X-OJS-Notification"] == str(note.pk)
    document = json.loads(body)
    assert (document["id"], document["version"]) == (note.pk, 1)
    assert document["rule"]["kind"] == "unserved_queues"
    (alert,) = document["alerts"]
    assert (alert["event"], alert["subject"], alert["ended_at"]) == ("begin", "mail", None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 abc \0\r\n\r\n", "OutboundError: 127.0.0.1: HTTP/1.1 abc"),
        (b"HTTP/1.1 500 No\r\n\r\n\0a\nb", "HTTP 500: a b"),
    ],
)
def test_what_a_receiver_answers_is_noted_whatever_it_is(settings, answer, error):
    settings.OJS = settings.OJS | {"OUTBOUND_NETWORKS": ["127.0.0.1"]}
    with answering(answer) as url:
        rule(emails="", webhook_url=url)
        waiting()
        checked()
        delivery.deliver_due()

    assert AlertNotification.objects.get().last_error == error


def test_a_webhook_to_this_machine_is_refused_and_given_up_in_the_end():
    with receiving() as receiver:
        rule(emails="", webhook_url=receiver.at("localhost"))
        waiting()
        checked()
        for _ in range(delivery.TRIES):
            delivery.deliver_due()
            AlertNotification.objects.update(next_try_at=ago(1))
        assert delivery.deliver_due() == 0

    note = AlertNotification.objects.get()
    assert (note.tries, note.sent_at) == (delivery.TRIES, None)
    assert note.gave_up_at is not None
    assert "localhost is not a public address" in note.last_error
    assert receiver.received == []


def test_a_job_gets_the_notification_as_its_argument_and_is_enqueued_once():
    rule(emails="", job_type="alert.raised", job_queue="ops")
    waiting()
    checked()

    delivery.deliver_due()

    job = Job.objects.get(type="alert.raised")
    assert (job.queue, job.args[0]["alerts"][0]["subject"]) == ("ops", "mail")


def test_a_receiver_that_fails_holds_up_no_other(settings):
    settings.EMAIL_BACKEND = "django.core.mail.backends.nowhere.EmailBackend"
    rule(job_type="alert.raised")
    waiting()
    checked()

    assert delivery.deliver_due() == 1

    failed = AlertNotification.objects.get(channel="email")
    assert failed.last_error.startswith("ModuleNotFoundError: ")
    assert Job.objects.filter(type="alert.raised").count() == 1


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django has MAILERS since 6.1")
def test_a_mail_goes_through_the_default_of_a_sites_mailers(settings, mailoutbox):
    settings.EMAIL_BACKEND = "django.core.mail.backends.nowhere.EmailBackend"
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
    rule()
    waiting()
    checked()

    delivery.deliver_due()

    assert [mail.subject[:5] for mail in mailoutbox] == ["[OJS]"]


def test_a_receiver_hears_of_an_end_only_after_the_begin():
    rule()
    waiting()
    checked()
    AlertNotification.objects.update(next_try_at=ahead(60))
    Job.objects.all().delete()
    assert len(checked()) == 1

    assert delivery.deliver_due() == 0
    AlertNotification.objects.order_by("pk")[:1].get().delete()
    assert delivery.deliver_due() == 1


def test_a_silent_reaper_is_noticed_by_a_server_and_its_return_by_itself():
    rule("silent_reaper", limits={"seconds": 30})
    assert reaper.take_turn is not None
    Reaper.objects.create(name="here:1", seen_at=ago(20))
    assert watch.look(), "it looks"
    assert mail.outbox == []
    Reaper.objects.update(seen_at=ago(100))
    assert watch.look()
    assert [message.subject for message in mail.outbox] == [
        "[OJS] Began: The reaper has not run for 1 min 40 s."
    ]
    assert watch.look() and len(mail.outbox) == 1

    reaper.sign_of_life("here:1")
    assert not watch.look(), "the reaper checks the rules"
    Alert.objects.update(seen_at=ago(10))
    reaper.sweep(["alerts"])
    assert delivery.deliver_due() == 1
    assert mail.outbox[1].subject.startswith("[OJS] Ended: The reaper has not run for")


def test_cron_can_check_the_rules(capsys):
    rule()
    waiting()

    with pytest.raises(CommandError, match="Alerts are open"):
        call_command("checkalerts", "--fail")

    assert "unserved_queues: Jobs wait in “mail”" in capsys.readouterr().out
    assert len(mail.outbox) == 1
    Job.objects.all().delete()
    Alert.objects.update(seen_at=ago(10))
    call_command("checkalerts", "--fail")
    assert "0 alerts are open; 1 notifications were sent." in capsys.readouterr().out


def test_old_alerts_and_notifications_are_deleted():
    rule()
    waiting()
    checked()
    delivery.deliver_due()
    assert evaluation.prune() == 0
    Alert.objects.update(ended_at=ago(91 * 86_400))
    AlertNotification.objects.update(created_at=ago(91 * 86_400))

    assert evaluation.prune() > 0

    assert not Alert.objects.exists() and not AlertNotification.objects.exists()


# Who serves a queue


@pytest.mark.parametrize("directive", ["quiet", "terminate"])
def test_a_worker_with_an_order_to_stop_serves_no_queue(directive):
    rule()
    waiting()
    worker = WorkerFactory(queues=["mail"], concurrency=4)
    assert checked() == []
    assert Situation().capacity == 4

    Worker.objects.filter(pk=worker.pk).update(directive=directive)

    assert checked() == ["Began: Jobs wait in “mail”, and no live worker serves it."]
    assert Situation().capacity == 0


def test_a_resumed_worker_serves_its_queues_again():
    waiting()
    WorkerFactory(queues=["mail"], state="quiet", directive="running")

    assert Situation().unserved(Situation().queues) == []


def test_a_worker_of_a_project_serves_only_its_jobs():
    rule()
    QueueFactory(name="mail")
    WorkerFactory(queues=["mail"], project="beta")
    JobFactory(queue="mail", project="beta", created_at=ago(90))
    assert checked() == []

    JobFactory(queue="mail", project="acme", created_at=ago(60))
    assert checked() == [
        "Began: Jobs of the project “acme” wait in “mail”, and no live worker serves them."
    ]
    WorkerFactory(queues=["mail"], project="acme")
    assert [title.partition(":")[0] for title in checked()] == ["Ended"]
    waiting()
    assert checked() == [
        "Began: Jobs without a project wait in “mail”, and no live worker serves them."
    ]


def test_only_the_wait_of_the_jobs_that_nobody_serves_counts():
    QueueFactory(name="mail")
    WorkerFactory(queues=["mail"], project="beta")
    JobFactory(queue="mail", project="beta", created_at=ago(7200))
    JobFactory(queue="mail", project="acme", created_at=ago(60))

    assert found("unserved_queues", limits={"seconds": 3600}) == []
    assert found("unserved_queues", limits={"seconds": 30}) == [
        "Jobs of the project “acme” wait in “mail”, and no live worker serves them."
    ]
