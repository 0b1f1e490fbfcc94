"""Without required keys, pages of other sites are refused; a key may come from anywhere."""

from __future__ import annotations

import json
import logging

import pytest
from django.test import Client

from jobs.http.authentication import make_key
from jobs.models import Job
from tests.factories import WorkerFactory
from tests.once import once_is_enough

pytestmark = once_is_enough

JOB = json.dumps({"type": "email.send", "args": []})
ELSEWHERE = {"HTTP_ORIGIN": "https://evil.example"}
ENQUEUES = {
    "ojs": ("/ojs/v1/jobs", JOB),
    "flare": ("/flare/v1/jobs", json.dumps({"job_type": "email.send", "payload": {}})),
}
READS = ["/ojs/v1/admin/jobs", "/ojs/v1/metrics", "/ojs/v1/queues"]

FROM_OTHER_SITES = {
    "another origin": ELSEWHERE,
    "an origin that is none": {"HTTP_ORIGIN": "null"},
    "another port": {"HTTP_ORIGIN": "http://testserver:3000"},
    "a name that begins like ours": {"HTTP_ORIGIN": "http://testserver.evil.example"},
    "a user name that is ours": {"HTTP_ORIGIN": "http://testserver@evil.example"},
    "another site": {"HTTP_SEC_FETCH_SITE": "cross-site"},
    "a neighbour": {"HTTP_SEC_FETCH_SITE": "same-site"},
    "another site that is framed": {
        "HTTP_SEC_FETCH_SITE": "cross-site",
        "HTTP_SEC_FETCH_MODE": "no-cors",
    },
}
FROM_OURS = {
    "no page": {},
    "a page of this site": {"HTTP_ORIGIN": "http://testserver"},
    "a page of this site, with the port": {"HTTP_ORIGIN": "http://testserver:80"},
    "a page of this site behind HTTPS": {"HTTP_ORIGIN": "https://testserver"},
    "a page of this site behind another name": {
        "HTTP_ORIGIN": "https://jobs.example.com",
        "HTTP_SEC_FETCH_SITE": "same-origin",
    },
    "an address typed by hand": {"HTTP_SEC_FETCH_SITE": "none"},
}


@pytest.fixture(params=["the project", "a site of its own"])
def open_to_all(request, db, settings):
    """A server without keys: the stand-alone project, and a site without its middleware."""
    settings.OJS = {"ALLOW_ANONYMOUS": True, "FLARE": {"ENABLED": True}}
    if request.param != "the project":
        settings.MIDDLEWARE = []
    return Client(raise_request_exception=False)


def post(client, path, body=JOB, content_type="application/json", **headers):
    return client.generic("POST", path, body, content_type, **headers)


@pytest.mark.parametrize("headers", FROM_OTHER_SITES.values(), ids=FROM_OTHER_SITES)
@pytest.mark.parametrize("binding", ENQUEUES)
def test_a_page_of_another_site_enqueues_nothing(open_to_all, binding, headers):
    reply = post(open_to_all, *ENQUEUES[binding], **headers)

    assert reply.status_code == 403
    assert "no API key" in reply.json()["error"]["message"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("headers", FROM_OURS.values(), ids=FROM_OURS)
@pytest.mark.parametrize("binding", ENQUEUES)
def test_clients_and_pages_of_this_site_do(open_to_all, binding, headers):
    assert post(open_to_all, *ENQUEUES[binding], **headers).status_code == 201


@pytest.mark.parametrize("path", READS)
def test_a_page_of_another_site_reads_nothing(open_to_all, path):
    assert open_to_all.get(path, **ELSEWHERE).status_code == 403
    assert open_to_all.get(path).status_code == 200


def test_a_page_of_another_site_terminates_no_worker(open_to_all):
    worker = WorkerFactory(state="running")
    path = f"/ojs/v1/admin/workers/{worker.pk}/terminate"

    assert post(open_to_all, path, b"", "", **ELSEWHERE).status_code == 403
    worker.refresh_from_db()
    assert worker.directive != "terminate"


def test_a_link_to_the_server_may_be_followed_from_anywhere(open_to_all):
    followed = {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate"}

    assert open_to_all.get("/ojs/v1/queues", **followed).status_code == 200
    assert post(open_to_all, "/ojs/v1/jobs", **followed).status_code == 403


@pytest.mark.parametrize(
    ("trusted", "origin", "status"),
    [
        ("https://app.example.com", "https://app.example.com", 201),
        ("https://*.example.com", "https://app.example.com", 201),
        ("https://*.example.com", "https://app.example.org", 403),
        ("https://app.example.com", "http://app.example.com", 403),
    ],
)
def test_a_site_names_other_origins_that_it_trusts(open_to_all, settings, trusted, origin, status):
    settings.CSRF_TRUSTED_ORIGINS = [trusted]
    headers = {"HTTP_ORIGIN": origin, "HTTP_SEC_FETCH_SITE": "cross-site"}

    assert post(open_to_all, "/ojs/v1/jobs", **headers).status_code == status


@pytest.mark.parametrize("binding", ENQUEUES)
def test_a_body_without_a_type_is_refused(open_to_all, binding):
    reply = post(open_to_all, *ENQUEUES[binding], content_type="")

    assert reply.status_code == 400
    assert "Content-Type" in reply.json()["error"]["message"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("content_type", ["", "application/json", "application/openjobspec+json"])
def test_an_empty_body_needs_no_type(open_to_all, content_type):
    assert post(open_to_all, "/ojs/v1/queues/mail/pause", b"", content_type).status_code == 200


@pytest.mark.parametrize("headers", FROM_OTHER_SITES.values(), ids=FROM_OTHER_SITES)
@pytest.mark.parametrize("anonymous", [True, False])
def test_a_key_may_come_from_anywhere_and_without_a_type(db, settings, headers, anonymous):
    settings.OJS = {"ALLOW_ANONYMOUS": anonymous}
    _, key = make_key("page", scopes=["produce"])
    client = Client(headers={"Authorization": f"Bearer {key}"})

    assert post(client, "/ojs/v1/jobs", content_type="", **headers).status_code == 201


HOSTS = {"HTTP_HOST": "evil.example"}


@pytest.fixture
def named(settings):
    settings.ALLOWED_HOSTS = ["jobs.example.com", ".internal"]


@pytest.mark.parametrize("path", ["manifest", "v1/health", "v1/jobs", "v1/admin/jobs"])
def test_a_host_that_is_not_ours_is_refused(open_to_all, named, path, caplog):
    with caplog.at_level(logging.ERROR):
        reply = open_to_all.get(f"/ojs/{path}", **HOSTS)

    assert reply.status_code == 400
    assert reply.json()["error"]["details"]["host"] == "evil.example"
    assert caplog.records == []


@pytest.mark.parametrize("host", ["jobs.example.com", "jobs.example.com:8000", "a.internal"])
def test_allowed_hosts_are_served(open_to_all, named, host):
    assert open_to_all.get("/ojs/manifest", HTTP_HOST=host).status_code == 200


@pytest.mark.parametrize("host", ["", "a b", "jobs.example.com@evil.example", "x" * 5000, "[::1"])
def test_what_is_no_host_is_refused(open_to_all, named, host):
    assert open_to_all.get("/ojs/manifest", HTTP_HOST=host).status_code == 400


def test_nothing_is_enqueued_under_a_wrong_host_with_a_key_either(db, named):
    _, key = make_key("any", scopes=["produce"])
    client = Client(headers={"Authorization": f"Bearer {key}"})

    assert post(client, "/ojs/v1/jobs", **HOSTS).status_code == 400
    assert not Job.objects.exists()
