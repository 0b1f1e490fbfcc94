"""API keys in the admin: made, shown once, revoked."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobs.api.authentication import make_key
from jobs.models import ApiKey
from tests.factories import ago
from tests.ojs_client import OJSClient
from tests.operators import buttons, confirm, list_of, messages, staff

pytestmark = pytest.mark.django_db

KEY = "ojs_jobs_apikey"
ADD = "/admin/ojs_jobs/apikey/add/"


def page_of(key):
    return reverse("admin:ojs_jobs_apikey_change", args=[key.pk])


def made(client, **fields):
    return client.post(ADD, {"name": "ci", "scopes": ["produce"]} | fields)


def shown_key(reply):
    return re.search(r'id="key">(ojs_[\w-]+)<', reply.content.decode())[1]


def test_a_key_is_shown_after_it_was_made_and_works():
    reply = made(staff("view_apikey", "manage_keys"))

    key = shown_key(reply)
    assert OJSClient(key).push().status_code == 201
    record = ApiKey.objects.get()
    assert (record.name, record.scopes, record.prefix) == ("ci", ["produce"], key[:12])
    assert LogEntry.objects.get().object_id == str(record.pk)


def test_a_key_is_shown_this_once_and_kept_nowhere():
    client = staff("view_apikey", "manage_keys")

    reply = made(client)
    key = shown_key(reply)

    assert "no-store" in reply["Cache-Control"]
    assert all(key not in cookie.value for cookie in client.cookies.values())
    record = ApiKey.objects.get()
    for url in (list_of(KEY), page_of(record), f"{page_of(record)[:-7]}history/"):
        content = client.get(url).content.decode()
        assert key not in content
        assert record.digest not in content


@pytest.mark.parametrize("scopes", [[], ["everything"]])
def test_a_key_needs_scopes_that_there_are(scopes):
    reply = made(staff("view_apikey", "manage_keys"), scopes=scopes)

    assert reply.status_code == 200
    assert "scopes" in reply.context["adminform"].form.errors
    assert not ApiKey.objects.exists()


def test_no_scope_is_given_without_being_chosen(admin_client):
    assert "checked" not in admin_client.get(ADD).content.decode()


def test_a_key_can_be_bound_to_a_worker_or_a_label():
    made(staff("view_apikey", "manage_keys"), scopes=["work"], worker_id="web_1/a", label="blue")

    key = ApiKey.objects.get()
    assert (key.worker_id, key.label) == ("web_1/a", "blue")


def test_editing_a_key_leaves_what_happened_to_it_meanwhile():
    client = staff("view_apikey", "manage_keys")
    record, _ = make_key("ci")
    client.get(page_of(record))
    ApiKey.objects.update(revoked_at=ago(1), last_used_at=ago(2))

    reply = client.post(page_of(record), {"name": "new name", "scopes": ["work"]})

    assert reply.status_code == 302
    edited = ApiKey.objects.get()
    assert (edited.name, edited.scopes) == ("new name", ["work"])
    assert edited.revoked_at is not None and edited.last_used_at is not None
    assert edited.digest == record.digest


def test_a_change_of_scopes_holds_at_once():
    record, key = make_key("ci", scopes=["produce"])
    assert OJSClient(key).push().status_code == 201

    staff("view_apikey", "manage_keys").post(page_of(record), {"name": "ci", "scopes": ["operate"]})

    assert OJSClient(key).push().status_code == 403


def test_a_revoked_key_is_refused_at_once():
    ops = staff("view_apikey", "manage_keys")
    record, key = make_key("ci")
    assert OJSClient(key).push().status_code == 201

    done = confirm(ops, KEY, "revoke", record, reason="Leaked")

    assert messages(done) == ["1 key was revoked."]
    assert OJSClient(key).push().status_code == 401
    assert LogEntry.objects.get().change_message == "Revoked. Reason: Leaked"


def test_a_key_is_revoked_once(admin_client):
    record, _ = make_key("ci")
    assert buttons(admin_client.get(page_of(record))) == ["revoke"]
    confirm(admin_client, KEY, "revoke", record)
    since = ApiKey.objects.get().revoked_at

    confirm(admin_client, KEY, "revoke", record)

    assert ApiKey.objects.get().revoked_at == since
    assert LogEntry.objects.count() == 1
    assert buttons(admin_client.get(page_of(record))) == []


def test_the_list_tells_when_a_key_was_last_used(admin_client):
    make_key("ci")
    assert "never" in admin_client.get(list_of(KEY)).content.decode()

    ApiKey.objects.update(last_used_at=ago(7290))

    assert "2 h 1 min ago" in admin_client.get(list_of(KEY)).content.decode()


def test_a_key_is_never_deleted_so_that_its_trace_stays(admin_client):
    record, _ = make_key("ci")

    reply = admin_client.post(reverse("admin:ojs_jobs_apikey_delete", args=[record.pk]))

    assert reply.status_code == 403
    assert ApiKey.objects.exists()
