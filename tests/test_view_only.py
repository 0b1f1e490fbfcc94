"""Users who may only view change nothing at any URL; `test_admin_permissions` tries the actions."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client

from jobs.http.authentication import make_key
from jobs.models import DeadJob, Job, Queue
from tests.admin_walk import OURS, addresses, make_site, snapshot
from tests.ojs_client import MEDIA_TYPE
from tests.once import once_is_enough
from workers.models import FleetOperation

# Thousands of requests: minutes on a busy machine.
pytestmark = [once_is_enough, pytest.mark.slow, pytest.mark.django_db]

METHODS = ("get", "head", "post", "put", "patch", "delete")


@pytest.fixture
def site() -> None:
    make_site()


@pytest.fixture
def viewer(site: None) -> Client:
    call_command("createojsgroups", verbosity=0)
    user = User.objects.create_user("viewer", is_staff=True)
    user.groups.add(Group.objects.get(name="OJS viewer"))
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


def test_a_viewer_changes_nothing_at_any_address_by_any_method(viewer):
    before = snapshot()
    urls = list(addresses())
    fields = {field.name: "1" for model in OURS for field in model._meta.fields}
    form = fields | {"_save": "1", "verb": "begin", "post": "yes", "confirmed": "1", "shown": "[]"}

    replies = {}
    for url in urls:
        # The admin treats everything but POST as GET.
        for method in ("get", "post") if url.startswith("/admin/") else METHODS:
            sent = form if method == "post" else None
            replies[url, method] = getattr(viewer, method)(url, sent).status_code

    assert len(urls) > 180
    assert {call: status for call, status in replies.items() if status >= 500} == {}
    opened = [url for (url, method), status in replies.items() if (method, status) == ("get", 200)]
    assert len([url for url in opened if url.startswith("/admin/ojs_")]) > 30, "it may look"
    assert snapshot() == before


READING = ("observe", "ojs:admin:read", "ojs:data:read")


def calls(key: str) -> dict[tuple[str, str], int]:
    """Try every URL of the APIs with every method that writes."""
    job = str(Job.objects.filter(state="active").latest("pk").pk)
    dead = str(DeadJob.objects.latest("pk").pk)
    body = {
        "worker_id": "web-4", "hostname": "h", "pid": 1, "queues": ["mail"], "state": "running",
        "job_id": job, "type": "email.send", "args": [], "name": "new", "cron": "0 * * * *",
        "jobs": [{"type": "email.send", "args": []}], "ids": [dead], "job_ids": [dead],
        "filter": {"state": "discarded"}, "directive": "quiet", "enabled": True, "reason": "x",
        "confirm": True, "checkpoint": {}, "progress": 0.5, "specs": {"a": "v1"},
        "error": {"type": "x", "message": "y"}, "concurrency": 1, "max_depth": 5,
    }  # fmt: skip
    client = Client(
        raise_request_exception=False, headers={"Authorization": f"Bearer {key}"} if key else {}
    )
    found = {}
    for url in list(addresses()):
        if not url.startswith(("/ojs/", "/flare/")):
            continue
        for method in METHODS[2:]:
            reply = getattr(client, method)(url, body, content_type=MEDIA_TYPE)
            found[url, method] = reply.status_code
    return found


@pytest.mark.parametrize("who", ["nobody", "a key that reads"])
def test_who_only_reads_the_api_writes_nothing(site, who):
    key = "" if who == "nobody" else make_key("reader", scopes=list(READING))[1]
    before = snapshot()

    found = calls(key)

    assert len(found) > 300
    assert {call: status for call, status in found.items() if status >= 500} == {}
    assert snapshot() == before
    assert Queue.objects.exists() and FleetOperation.objects.exists()


def test_a_key_that_may_do_everything_does_much_by_the_same_calls(site):
    """Otherwise the test above would prove nothing."""
    _, key = make_key("all")

    done = [call for call, status in calls(key).items() if status < 300]

    assert len(done) > 25, done
