"""Rate limits in the admin: what a key holds back, and the ways to end that."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs import engine
from jobs.models import OperatorAction, RateLimit
from tests.factories import JobFactory, QueueFactory, ago, ahead
from tests.operators import choose, confirm, list_of, operator, viewer

pytestmark = pytest.mark.django_db

LIMIT = "ojs_jobs_ratelimit"


def page_of(key, client=None):
    url = reverse("admin:ojs_jobs_ratelimit_change", args=[key])
    return (client or viewer()).get(url).content.decode()


def test_a_page_says_who_has_the_places_of_a_key_and_how_many_wait():
    QueueFactory(name="mail", has_limits=True)
    RateLimit.objects.create(pk="smtp", policy={"concurrency": 1}, exceeded_at=ago(60))
    running = JobFactory(active=True, queue="mail", rate_key="smtp", reserved_by="web-1")
    JobFactory.create_batch(2, queue="mail", rate_key="smtp")

    page = page_of("smtp")

    assert "1 at once" in page
    assert "1 / 1" in page
    assert str(running.pk) in page
    assert "web-1" in page
    assert "when one of its jobs ends" in page


def test_the_list_finds_what_jobs_wait_for_what_is_held_and_what_is_overridden():
    RateLimit.objects.create(pk="free", policy={"concurrency": 5})
    RateLimit.objects.create(pk="full", policy={"concurrency": 1}, exceeded_at=ago(60))
    RateLimit.objects.create(pk="held", held_until=ahead(600))
    RateLimit.objects.create(pk="was-held", held_until=ago(600))
    RateLimit.objects.create(pk="changed", override={"concurrency": 2})
    RateLimit.objects.create(pk="was-changed", override={"concurrency": 2}, override_until=ago(1))
    client = viewer()

    def listed(state):
        rows = client.get(list_of(LIMIT), {"state": state}).context["cl"].result_list
        return {row.pk for row in rows}

    assert listed("waiting") == {"full"}
    assert listed("held") == {"held"}
    assert listed("overridden") == {"changed"}


def test_the_end_of_a_hold_lets_the_jobs_of_the_key_start_at_once():
    QueueFactory(name="mail", has_limits=True)
    limit = RateLimit.objects.create(
        pk="smtp", policy={"concurrency": 5}, held_until=ahead(600), closed_until=ahead(600)
    )
    job = JobFactory(queue="mail", rate_key="smtp")
    assert engine.claim(["mail"], worker_id="w1") == []

    confirm(operator(), LIMIT, "release", limit, reason="The provider is back")

    assert [one.id for one in engine.claim(["mail"], worker_id="w1")] == [job.pk]
    audited = OperatorAction.objects.get(verb="change_ratelimit")
    assert (audited.count, audited.reason) == (1, "The provider is back")


def test_the_end_of_an_override_brings_the_own_limits_back_and_leaves_others_as_they_are():
    RateLimit.objects.create(pk="smtp", policy={"concurrency": 5}, override={"concurrency": 1})
    RateLimit.objects.create(pk="sms", policy={"concurrency": 5}, held_until=ahead(600))

    confirm(operator(), LIMIT, "restore", *RateLimit.objects.all())

    assert dict(RateLimit.objects.values_list("pk", "override")) == {"smtp": {}, "sms": {}}
    assert RateLimit.objects.get(pk="sms").held_until is not None
    assert OperatorAction.objects.get(verb="change_ratelimit").selection["ids"] == ["smtp"]


def test_a_viewer_sees_no_buttons_and_changes_nothing():
    limit = RateLimit.objects.create(pk="smtp", held_until=ahead(600))
    client = viewer()

    assert "End the hold" not in page_of("smtp", client)
    choose(client, LIMIT, "release", limit)

    assert RateLimit.objects.get().held_until is not None
