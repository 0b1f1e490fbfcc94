"""API keys in the admin: created, shown once, revoked."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobs.http.authentication import make_key
from jobs.models import ApiKey, OperatorAction
from tests.factories import ago, ahead
from tests.ojs_client import OJSClient
from tests.operators import answer, buttons, choose, confirm, forms, list_of, messages, press, staff

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


def sent_twice(client):
    """Two replies to one form, as when the page with the key is reloaded."""
    fields = next(form for form in forms(client.get(ADD)) if "once" in form.fields).fields
    fields = {"name": "ci", "scopes": ["produce"], "once": fields["once"]}
    return client.post(ADD, fields), client.post(ADD, fields, follow=True)


def test_reloading_the_page_with_the_key_makes_no_other_one():
    first, again = sent_twice(staff("view_apikey", "manage_keys"))

    key = ApiKey.objects.get()
    assert OJSClient(shown_key(first)).push().status_code == 201
    assert again.redirect_chain == [(page_of(key), 302)]
    assert messages(again)[0].startswith("This key was made already")
    assert shown_key(first) not in again.content.decode()


def test_a_form_that_is_opened_again_makes_another_key():
    client = staff("view_apikey", "manage_keys")

    keys = {shown_key(sent_twice(client)[0]) for _ in range(2)}

    assert len(keys) == ApiKey.objects.count() == 2


def test_a_form_sent_again_after_a_rotation_does_not_bring_the_old_secret_back():
    client = staff("view_apikey", "manage_keys")
    fields = {"name": "ci", "scopes": ["produce"], "once": "01234567-89ab-7def-8123-456789abcdef"}
    client.post(ADD, fields)
    confirm(client, KEY, "rotate", ApiKey.objects.get(), overlap="0")

    again = client.post(ADD, fields, follow=True)

    assert messages(again)[0].startswith("This key was made already")
    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize("scopes", [[], ["everything"]])
def test_a_key_needs_scopes_that_there_are(scopes):
    reply = made(staff("view_apikey", "manage_keys"), scopes=scopes)

    assert reply.status_code == 200
    assert "scopes" in reply.context["adminform"].form.errors
    assert not ApiKey.objects.exists()


ARGS = "ojs:admin:args"


def test_who_sees_no_arguments_makes_no_key_that_does():
    client, trusted = (
        staff("view_apikey", "manage_keys"),
        staff("view_apikey", "manage_keys", "view_job_args", username="trusted"),
    )

    reply = made(client, scopes=["operate", ARGS])

    assert "scopes" in reply.context["adminform"].form.errors
    assert ARGS not in client.get(ADD).content.decode()
    assert not ApiKey.objects.exists()
    made(trusted, scopes=["operate", ARGS])
    assert ApiKey.objects.get().scopes == ["operate", ARGS]


def test_who_sees_no_arguments_neither_adds_the_scope_nor_takes_it_away_unasked():
    client = staff("view_apikey", "manage_keys")
    (without, _), (having, _) = (make_key(str(s), scopes=s) for s in (["work"], ["work", ARGS]))

    for key in (without, having):
        client.post(page_of(key), {"name": "new", "scopes": ["work", ARGS]})

    assert ApiKey.objects.get(pk=without.pk).scopes == ["work"]
    changed = ApiKey.objects.get(pk=having.pk)
    assert (changed.name, changed.scopes) == ("new", ["work", ARGS])


def test_who_sees_no_arguments_gets_no_secret_of_a_key_that_does():
    key, _ = make_key("ci", scopes=["operate", ARGS])
    client = staff("view_apikey", "manage_keys")

    reply = confirm(client, KEY, "rotate", key, overlap="24")

    assert messages(reply)[0].startswith("You may not give")
    assert ApiKey.objects.get().digest == key.digest


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
    assert buttons(admin_client.get(page_of(record))) == ["rotate", "revoke"]
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


# Expiry


def test_a_key_can_be_made_with_a_date_and_one_that_has_passed_is_refused():
    client = staff("view_apikey", "manage_keys")

    past = made(client, expires_at_0="2026-01-31", expires_at_1="12:00:00")
    assert "This time is in the past." in past.content.decode()
    assert not ApiKey.objects.exists()

    key = shown_key(made(client, expires_at_0="2999-01-31", expires_at_1="12:00:00"))
    assert ApiKey.objects.get().expires_at.isoformat() == "2999-01-31T12:00:00+00:00"
    assert OJSClient(key).push().status_code == 201


def test_a_key_can_be_ended_by_its_date_at_once():
    record, key = make_key("ci")
    assert OJSClient(key).push().status_code == 201

    fields = {"name": "ci", "scopes": record.scopes}
    past = {"expires_at_0": "2026-01-31", "expires_at_1": "12:00:00"}
    reply = staff("view_apikey", "manage_keys").post(page_of(record), fields | past)

    assert reply.status_code == 302
    assert OJSClient(key).push().status_code == 401
    selection = OperatorAction.objects.exclude(verb="refuse_request").get().selection
    assert selection["expires_at"] == "2026-01-31T12:00:00+00:00"


STATES = {
    "lasting": {},
    "soon": {"expires_at": ahead(3 * 86400)},
    "late": {"expires_at": ago(60)},
    "gone": {"revoked_at": ago(60), "expires_at": ago(60)},
    "turned": {
        "previous_digest": "0" * 64,
        "previous_prefix": "ojs_earlier0",
        "previous_until": ahead(3600),
        "rotated_at": ago(60),
    },
}


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("usable", ["lasting", "soon", "turned"]),
        ("expiring", ["soon"]),
        ("in_rotation", ["turned"]),
        ("expired", ["late"]),
        ("revoked", ["gone"]),
        ("nonsense", sorted(STATES)),
    ],
)
def test_keys_are_found_by_their_state(admin_client, state, names):
    for name, fields in STATES.items():
        make_key(name, **fields)

    found = admin_client.get(f"{list_of(KEY)}?state={state}").context["cl"].result_list

    assert sorted(key.name for key in found) == names


def test_the_list_says_which_keys_end_and_from_where_they_are_used(admin_client):
    for name, fields in STATES.items():
        make_key(name, **fields)
    used = {"last_used_at": ago(60), "last_used_address": "192.0.2.7", "last_used_protocol": "agq"}
    ApiKey.objects.filter(name="lasting").update(**used)

    content = admin_client.get(list_of(KEY)).content.decode()

    for words in ("expires soon", "expired", "revoked", "in 2 d 23 h", "192.0.2.7 (AGQ)"):
        assert words in content
    found = admin_client.get(f"{list_of(KEY)}?last_used_protocol=agq").context["cl"].result_list
    assert [key.name for key in found] == ["lasting"]


def test_the_dashboard_names_keys_that_expire_soon(admin_client):
    make_key("billing", expires_at=ahead(3 * 86400))
    make_key("far", expires_at=ahead(30 * 86400))
    make_key("gone", expires_at=ahead(86400), revoked_at=ago(1))

    content = admin_client.get(reverse("admin:ojs_workers_dashboard_changelist")).content.decode()

    assert "The API key “billing” expires in 2 d 23 h." in content
    assert "“far”" not in content and "“gone”" not in content


# A new secret


def test_a_new_secret_is_shown_once_and_works_beside_the_present_one():
    ops = staff("view_apikey", "manage_keys")
    record, present = make_key("ci", scopes=["produce"])
    page = press(ops, ops.get(page_of(record)), "rotate")

    reply = answer(ops, page, overlap="24", reason="Every quarter")

    new = shown_key(reply)
    assert "no-store" in reply["Cache-Control"]
    assert f"The previous one, {present[:12]}…, works until" in reply.content.decode()
    assert OJSClient(present).push().status_code == OJSClient(new).push().status_code == 201
    assert LogEntry.objects.get().change_message == "A new secret was made. Reason: Every quarter"
    action = OperatorAction.objects.get()
    assert (action.verb, action.count) == ("manage_keys", 1)
    stored = str([*ApiKey.objects.values(), *OperatorAction.objects.values()])
    assert new not in stored and present not in stored
    for url in (list_of(KEY), page_of(record), f"{page_of(record)[:-7]}history/"):
        assert new not in ops.get(url).content.decode()


def test_a_leaked_secret_ends_at_once(admin_client):
    record, leaked = make_key("ci")
    assert OJSClient(leaked).push().status_code == 201

    reply = confirm(admin_client, KEY, "rotate", record, overlap="0")

    assert "no longer works" in reply.content.decode()
    assert OJSClient(leaked).push().status_code == 401
    assert OJSClient(shown_key(reply)).push().status_code == 201


def test_the_form_for_a_new_secret_makes_one_however_often_it_is_sent(admin_client):
    """Reloading the page that shows the secret sends the form again."""
    record, _ = make_key("ci")
    page = choose(admin_client, KEY, "rotate", record)
    new = shown_key(answer(admin_client, page, overlap="0"))

    again = answer(admin_client, page, overlap="0")

    assert messages(again)[0].startswith("It has been given a new secret")
    assert new not in again.content.decode()
    assert OJSClient(new).push().status_code == 201


def test_a_key_in_rotation_is_rotated_again_only_if_that_is_said(admin_client):
    record, _ = make_key("ci")
    confirm(admin_client, KEY, "rotate", record, overlap="24")
    digest = ApiKey.objects.get().digest

    refused = confirm(admin_client, KEY, "rotate", record, overlap="24")
    assert "is being rotated already" in messages(refused)[0]
    assert ApiKey.objects.get().digest == digest

    shown_key(confirm(admin_client, KEY, "rotate", record, overlap="24", end_earlier="on"))
    assert ApiKey.objects.get().previous_digest == digest


def test_the_page_of_a_key_tells_who_has_not_changed_over(admin_client):
    record, _ = make_key("ci")
    assert "Previous secret" not in admin_client.get(page_of(record)).content.decode()
    confirm(admin_client, KEY, "rotate", record, overlap="24")
    assert "not since the rotation" in admin_client.get(page_of(record)).content.decode()

    ApiKey.objects.update(previous_used_at=ago(7290))

    assert "2 h 1 min ago" in admin_client.get(page_of(record)).content.decode()


@pytest.mark.parametrize(
    ("end", "left"), [({"revoked_at": ago(1)}, []), ({"expires_at": ago(1)}, ["revoke"])]
)
def test_a_key_that_has_ended_gets_no_new_secret(admin_client, end, left):
    record, _ = make_key("ci", **end)

    assert buttons(admin_client.get(page_of(record))) == left
    confirm(admin_client, KEY, "rotate", record, overlap="24")

    assert ApiKey.objects.get().digest == record.digest
