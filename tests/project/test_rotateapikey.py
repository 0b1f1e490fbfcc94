"""`manage.py rotateapikey`: a new secret, alone on the last line, beside the previous one."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from jobs.http.authentication import make_key
from jobs.models import ApiKey, OperatorAction
from tests.factories import ago
from tests.ojs_client import OJSClient

pytestmark = pytest.mark.django_db


def rotate(*arguments: str) -> tuple[str, str]:
    """Return its messages, and everything that a shell would capture."""
    out, words = StringIO(), StringIO()
    call_command("rotateapikey", *arguments, stdout=out, stderr=words)
    return words.getvalue(), out.getvalue()


def opens(key: str) -> bool:
    return OJSClient(key).push().status_code == 201


@pytest.mark.parametrize("named_by", ["its name", "its prefix", "the first of its prefix"])
def test_a_key_gets_a_new_secret_beside_the_one_before(named_by):
    record, before = make_key("billing")
    make_key("another")
    name = {"its name": "billing", "its prefix": record.prefix}.get(named_by, record.prefix[:10])

    words, captured = rotate(name)

    new = captured.strip()
    assert captured.splitlines() == [new]
    assert opens(before) and opens(new)
    assert f"billing ({new[:12]}…). The earlier one, {before[:12]}…, works until 2" in words
    assert new not in words


def test_without_an_overlap_the_secret_before_ends_at_once():
    _, before = make_key("billing")
    assert opens(before)

    words, captured = rotate("billing", "--overlap", "0")

    assert "works no more." in words
    assert not opens(before) and opens(captured.strip())


def test_a_second_rotation_within_the_overlap_takes_force():
    _, first = make_key("billing")
    _, captured = rotate("billing", "--overlap", "7d")

    with pytest.raises(CommandError, match=r"works until .*--force"):
        rotate("billing")
    assert opens(first)

    rotate("billing", "--force")
    assert not opens(first) and opens(captured.strip())


def test_it_is_in_the_audit_without_the_secret():
    record, _ = make_key("billing")

    _, captured = rotate("billing")

    (action,) = OperatorAction.objects.values()
    assert (action["verb"], action["source"], action["count"]) == ("manage_keys", "shell", 1)
    assert action["selection"]["ids"] == [str(record.pk)]
    assert captured.strip() not in str(action)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "no key with the name or the first characters 'nothing'"),
        (["twin"], r"Several keys are meant: twin \(ojs_.*, twin \(ojs_.*first characters"),
        (["ojs_"], "no key with the name"),
        (["late"], "'late' is revoked or has expired"),
        (["gone"], "'gone' is revoked or has expired"),
        (["one", "--overlap", "soon"], "'soon' is not a number and one of s, m, h, d, w"),
        (["one", "--overlap", "999999d"], "longer than a century"),
        (["one", "--overlap", ""], "'' is not a number"),
    ],
)
def test_what_is_unclear_is_refused_and_changes_nothing(arguments, says):
    for name in ("one", "twin", "twin"):
        make_key(name)
    make_key("late", expires_at=ago(1))
    make_key("gone", revoked_at=ago(1))
    before = list(ApiKey.objects.order_by("pk").values())

    with pytest.raises(CommandError, match=says):
        rotate(*arguments)

    assert list(ApiKey.objects.order_by("pk").values()) == before
