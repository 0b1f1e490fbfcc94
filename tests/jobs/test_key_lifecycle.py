"""API keys expire, get new secrets, and record their last use."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.errors import KeyExpired, NotAuthenticated
from jobs.http.authentication import (
    NotRotated,
    StillOverlapping,
    caller_of,
    current_caller,
    current_callers,
    digest,
    forget_keys,
    make_key,
    rotate_key,
)
from jobs.models import ApiKey
from tests.factories import ago, ahead
from tests.flare_client import FlareClient
from tests.ojs_client import OJSClient, refusal
from tests.processes import eventually

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def rotated(overlap=DAY, **fields):
    """A key with two secrets: the record, the previous secret and the new one."""
    record, earlier = make_key("billing", **fields)
    new = rotate_key(record, overlap=overlap)
    record.refresh_from_db()
    return record, earlier, new


def opens(key) -> bool:
    return OJSClient(key).push().status_code == 201


# Expiry


def test_a_key_works_until_its_date_and_then_says_that_it_has_expired():
    record, key = make_key("billing", expires_at=ahead(60))
    assert opens(key)

    ApiKey.objects.filter(pk=record.pk).update(expires_at="2026-01-31T12:00:00Z")
    forget_keys()

    reply = OJSClient(key).push()
    assert reply.status_code == 401
    assert refusal(reply)["code"] == "token_expired"
    assert refusal(reply)["message"] == "This API key expired at 2026-01-31T12:00:00.000Z."
    assert reply.headers["WWW-Authenticate"] == 'Bearer realm="ojs"'


def test_an_expired_key_is_in_no_memory(settings):
    settings.OJS = {"API_KEY_CACHE": 3600}
    _, key = make_key("billing", expires_at=ahead(1))

    eventually(lambda: OJSClient(key).push().status_code == 401)


def test_the_clock_of_the_database_decides_when_a_key_expires(monkeypatch):
    now = timezone.now
    _, lasting = make_key("lasting", expires_at=ahead(3600))
    _, past = make_key("past", expires_at=ago(3600))

    monkeypatch.setattr(timezone, "now", lambda: now() + 2 * DAY)
    assert caller_of(lasting).name == "lasting"
    monkeypatch.setattr(timezone, "now", lambda: now() - 2 * DAY)
    with pytest.raises(KeyExpired):
        caller_of(past)


# Rotation


def test_both_secrets_of_a_key_open_what_the_key_opens():
    record, earlier, new = rotated(scopes=["produce"], project="acme")

    assert caller_of(earlier) == caller_of(new)
    assert caller_of(new).project == "acme"
    assert new.startswith(record.prefix) and earlier.startswith(record.previous_prefix)
    assert OJSClient(earlier).send("workers/fetch", {}).status_code == 403
    assert opens(earlier) and opens(new)


def test_no_secret_is_stored():
    _, earlier, new = rotated()

    stored = str(ApiKey.objects.values().get())
    assert earlier not in stored and new not in stored


def test_the_earlier_secret_stops_at_its_date_and_says_why():
    record, earlier, new = rotated()
    ApiKey.objects.filter(pk=record.pk).update(previous_until="2026-01-31T12:00:00Z")

    reply = OJSClient(earlier).push()

    assert reply.status_code == 401
    assert refusal(reply)["message"] == (
        "This API key was replaced by a new one, and stopped working at 2026-01-31T12:00:00.000Z."
    )
    assert opens(new)


def test_a_secret_that_was_replaced_is_in_no_memory(settings):
    settings.OJS = {"API_KEY_CACHE": 3600}
    _, earlier, new = rotated(overlap=timedelta(seconds=1))

    eventually(lambda: OJSClient(earlier).push().status_code == 401)
    assert opens(new)


def test_without_an_overlap_the_earlier_secret_stops_at_once():
    record, leaked = make_key("billing")
    assert opens(leaked)

    new = rotate_key(record, overlap=timedelta(0))

    assert not opens(leaked) and opens(new)


@pytest.mark.parametrize("end", [{"revoked_at": ago(1)}, {"expires_at": ago(1)}])
def test_the_end_of_a_key_is_the_end_of_both_its_secrets(end):
    record, earlier, new = rotated()

    ApiKey.objects.filter(pk=record.pk).update(**end)

    assert not opens(earlier) and not opens(new)


def test_a_key_has_two_secrets_and_not_three():
    record, first, second = rotated()

    with pytest.raises(StillOverlapping, match=f"{first[:12]}… works until"):
        rotate_key(record, overlap=DAY)
    assert opens(first) and opens(second)

    third = rotate_key(record, overlap=DAY, end_earlier=True)
    assert not opens(first)
    assert opens(second) and opens(third)


def test_once_the_overlap_is_over_a_key_can_be_rotated_again():
    record, first, second = rotated(overlap=timedelta(0))

    third = rotate_key(record, overlap=DAY)

    assert [opens(key) for key in (first, second, third)] == [False, True, True]


def test_of_two_rotations_at_once_one_is_refused():
    record, _ = make_key("billing")
    same = ApiKey.objects.get()
    rotate_key(record, overlap=timedelta(0))

    with pytest.raises(NotRotated, match="rotated meanwhile"):
        rotate_key(same, overlap=DAY)


@pytest.mark.parametrize(
    ("end", "words"), [({"revoked_at": ago(1)}, "revoked"), ({"expires_at": ago(1)}, "expired")]
)
def test_a_key_that_has_ended_gets_no_new_secret(end, words):
    record, _ = make_key("billing")
    ApiKey.objects.update(**end)

    with pytest.raises(NotRotated, match=words):
        rotate_key(record, overlap=DAY)

    assert ApiKey.objects.get().digest == record.digest


# Open connections


def test_an_open_connection_learns_what_has_become_of_its_key(settings):
    settings.OJS = {"API_KEY_CACHE": 0}
    record, key = make_key("billing", scopes=["produce", "work"])
    assert current_caller(digest(key)).may("work")

    ApiKey.objects.filter(pk=record.pk).update(scopes=["produce"], label="gpu")
    assert current_caller(digest(key)) == caller_of(key)
    assert not current_caller(digest(key)).may("work")
    assert current_caller(digest(key)).label == "gpu"

    ApiKey.objects.filter(pk=record.pk).update(revoked_at=ago(1))
    with pytest.raises(NotAuthenticated):
        current_caller(digest(key))


def test_many_keys_are_asked_about_in_one_query(django_assert_num_queries):
    _, earlier, new = rotated()
    gone = [make_key("gone", **end)[1] for end in ({"revoked_at": ago(1)}, {"expires_at": ago(1)})]
    asked = [digest(key) for key in (earlier, new, *gone, "never was")]

    with django_assert_num_queries(1):
        found = current_callers(asked)

    assert set(found) == {digest(earlier), digest(new)}


def test_a_key_made_by_another_process_works_at_once():
    key = "ojs_made-elsewhere"
    assert OJSClient(key).push().status_code == 401

    ApiKey.objects.create(name="elsewhere", prefix=key[:12], digest=digest(key))

    assert opens(key)


# The last use


def test_the_last_use_says_when_from_where_and_by_which_protocol(settings):
    settings.OJS = settings.OJS | {"FLARE": {"ENABLED": True}}
    record, key = make_key("billing")

    OJSClient(key).get("/ojs/v1/queues", REMOTE_ADDR="192.0.2.7")
    record.refresh_from_db()
    assert record.last_used_at is not None
    assert (record.last_used_address, record.last_used_protocol) == ("192.0.2.7", "ojs")

    ApiKey.objects.update(last_used_at=ago(61))
    forget_keys()
    FlareClient(key).poll()
    record.refresh_from_db()
    assert (record.last_used_address, record.last_used_protocol) == ("127.0.0.1", "flare")


def test_the_last_use_is_written_once_a_minute_however_many_servers_there_are():
    _, key = make_key("billing")
    caller_of(key, protocol="ojs", address="192.0.2.1")
    before = ApiKey.objects.values().get()

    for server in range(3):
        forget_keys()
        caller_of(key, protocol="flare", address=f"192.0.2.{server}")

    assert ApiKey.objects.values().get() == before


def test_the_use_of_the_earlier_secret_is_known_by_itself():
    """So that an operator sees which clients have not switched yet."""
    record, earlier, new = rotated()
    caller_of(new)
    record.refresh_from_db()
    assert record.last_used_at is not None and record.previous_used_at is None

    caller_of(earlier)

    record.refresh_from_db()
    assert record.previous_used_at is not None


def test_a_rotation_begins_a_new_count_of_the_earlier_secrets_use():
    record, earlier, _ = rotated()
    caller_of(earlier)
    record.refresh_from_db()

    rotate_key(record, overlap=DAY, end_earlier=True)

    record.refresh_from_db()
    assert record.previous_used_at is None
