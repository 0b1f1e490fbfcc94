"""`manage.py createapikey`: the key is printed once, alone on the last line."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from jobs.models import ApiKey
from tests.factories import ago
from tests.ojs_client import OJSClient

pytestmark = pytest.mark.django_db


def create(*arguments: str, name: str = "billing") -> tuple[str, str]:
    """Return the whole output, and the last line of what a shell would capture."""
    out, words = StringIO(), StringIO()
    call_command("createapikey", "--name", name, *arguments, stdout=out, stderr=words)
    return words.getvalue() + out.getvalue(), out.getvalue().splitlines()[-1]


def test_the_last_line_is_a_key_that_works():
    output, key = create()

    assert OJSClient().push().status_code == 401
    assert OJSClient(key=key).push().status_code == 201
    assert output.endswith(f"\n{key}\n")


def test_the_key_is_all_that_a_shell_captures():
    out = StringIO()
    call_command("createapikey", "--name", "billing", stdout=out, stderr=StringIO())

    assert out.getvalue().split() == out.getvalue().splitlines()


def test_only_a_hash_of_it_is_stored():
    _, key = create()

    stored = ApiKey.objects.values().get()
    assert key not in str(stored) and key.startswith(stored["prefix"])


def test_by_default_it_may_produce_and_work_but_not_operate():
    _, key = create()

    client = OJSClient(key=key)
    assert client.send("workers/fetch", {"queues": ["default"]}).status_code == 200
    assert client.see("dead-letter").status_code == 403


def test_it_may_do_what_its_scopes_say_and_no_more():
    _, key = create("--scopes", "operate, operate")

    client = OJSClient(key=key)
    assert client.see("dead-letter").status_code == 200
    assert client.push().status_code == 403
    assert ApiKey.objects.get().scopes == ["operate"]


def test_scopes_may_be_given_one_by_one():
    create("--scopes", "produce", "--scopes", "operate,observe")

    assert ApiKey.objects.get().scopes == ["produce", "operate", "observe"]


def test_a_key_of_one_worker_speaks_for_no_other():
    _, key = create("--scopes", "work", "--worker-id", "w-1")

    client = OJSClient(key=key)
    assert client.send("workers/heartbeat", {"worker_id": "w-1"}).status_code == 200
    assert client.send("workers/heartbeat", {"worker_id": "w-2"}).status_code == 403


def test_a_key_with_a_label_is_for_workers_that_carry_it():
    _, key = create("--scopes", "work", "--label", "canary")

    client = OJSClient(key=key)
    beat = {"worker_id": "w-1", "labels": ["canary"]}
    assert client.send("workers/heartbeat", beat).status_code == 200
    assert client.send("workers/heartbeat", beat | {"labels": ["v2"]}).status_code == 403


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scopes", "produce,wrok"], "--scopes takes produce, work, operate.* not wrok"),
        (["--scopes", " , "], "--scopes takes produce, work, operate"),
        (["--scopes", "produce", "--worker-id", "w-1"], "add the scope work"),
        (["--scopes", "produce", "--label", "canary"], "add the scope work"),
        (["--worker-id", "w" * 256], "--worker-id: .*255"),
        (["--name", " "], "--name: .*blank"),
        (["--name", "n" * 256], "--name: .*255"),
    ],
)
def test_a_mistake_is_a_sentence_and_no_key(arguments, says):
    with pytest.raises(CommandError, match=says):
        create(*arguments)

    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("option", ["--worker-id", "--label", "--project"])
@pytest.mark.parametrize("empty", ["", " "])
def test_a_binding_to_nothing_is_refused_rather_than_no_binding(option, empty):
    """For example from a script whose variable is not set."""
    with pytest.raises(CommandError, match=f"{option} is empty"):
        create(option, empty)

    assert not ApiKey.objects.exists()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2999-01-31", "2999-01-31T00:00:00+00:00"),
        ("2999-01-31T12:00:00+02:00", "2999-01-31T10:00:00+00:00"),
    ],
)
def test_a_key_expires_at_the_date_that_is_named(text, moment):
    output, key = create("--expires", text)

    assert ApiKey.objects.get().expires_at.isoformat() == moment
    assert f"until {moment.replace('+00:00', '.000Z')}." in output
    assert OJSClient(key=key).push().status_code == 201


def test_a_key_expires_after_the_time_that_is_named():
    create("--expires", "90d")

    record = ApiKey.objects.get()
    assert record in ApiKey.objects.usable()
    span = record.expires_at - record.created_at
    assert timedelta(days=89, hours=23) < span < timedelta(days=90, hours=1)


@pytest.mark.parametrize("text", ["", "soon", "90", "2026-02-30", "2026-01-31", "0d", "-1d"])
def test_a_date_that_is_none_or_has_passed_makes_no_key(text):
    with pytest.raises(CommandError, match="--expires"):
        create(f"--expires={text}")

    assert not ApiKey.objects.exists()


def test_a_second_key_of_a_name_is_made_only_if_that_is_said():
    _, first = create()

    with pytest.raises(CommandError, match=rf"billing \({first[:12]}….*--force"):
        create()
    assert ApiKey.objects.count() == 1

    _, second = create("--force")
    assert all(OJSClient(key=key).push().status_code == 201 for key in (first, second))


@pytest.mark.parametrize("end", [{"revoked_at": ago(1)}, {"expires_at": ago(1)}])
def test_the_name_of_a_key_that_has_ended_is_free(end):
    create()
    ApiKey.objects.update(**end)

    _, key = create()

    assert OJSClient(key=key).push().status_code == 201


def test_a_key_is_for_no_worker_that_cannot_exist():
    with pytest.raises(CommandError, match="--worker-id: A worker’s id contains no control"):
        create("--worker-id", "\x01")

    assert not ApiKey.objects.exists()


def test_a_time_with_too_many_digits_is_called_that():
    with pytest.raises(CommandError, match="'99999999999d' has more than nine digits"):
        create("--expires", "99999999999d")


def test_it_says_in_words_what_the_key_may_do():
    assert "which may produce and work." in create()[0]
    assert "which may observe." in create("--scopes", "observe", name="a")[0]
    all_of_them = create("--scopes", "produce,work,operate,observe", name="b")[0]
    assert "which may produce, work, operate and observe." in all_of_them
