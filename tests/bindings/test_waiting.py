"""Under WSGI, waiting requests hold a thread each: all kinds share the same places."""

from __future__ import annotations

import contextlib

import pytest
from django.core.wsgi import get_wsgi_application

from jobs import engine
from jobs.http import waiting
from tests.factories import JobFactory
from tests.project.wsgi import answered, environment

pytestmark = pytest.mark.django_db

SECONDS = "3600"


def fetch_that_waits(api):
    assert api.fetch(wait_ms=3_600_000) == []


def result_that_is_waited_for(api):
    job = JobFactory(active=True)

    reply = api.see(f"jobs/{job.pk}/result", wait="true", timeout=SECONDS)

    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "timeout")


def stream_of_progress(api):
    job = JobFactory(active=True)
    reply = api.see(f"jobs/{job.pk}/progress/stream")
    assert list(reply.streaming_content) == [b"retry: 1000\n\n"]


def enqueue_that_waits_for_room(api):
    engine.queues.configure("full", {"max_depth": 1, "strategy": "block"})
    JobFactory(queue="full")

    reply = api.send(
        "jobs",
        {"type": "email.send", "args": [], "options": {"queue": "full"}},
        headers={"OJS-Block-Timeout": SECONDS},
    )

    assert reply.status_code == 429


KINDS = [
    fetch_that_waits,
    result_that_is_waited_for,
    stream_of_progress,
    enqueue_that_waits_for_room,
]


@pytest.fixture
def places(settings, monkeypatch):
    settings.OJS = settings.OJS | {"MAX_WAIT": 3600}
    monkeypatch.setattr(waiting, "PLACES", 2)
    return contextlib.ExitStack()


@pytest.mark.parametrize("ask", KINDS, ids=lambda kind: kind.__name__)
def test_whatever_waits_is_answered_at_once_when_others_have_taken_the_places(api, places, ask):
    with places:
        assert [places.enter_context(waiting.place()) for _ in range(3)] == [True, True, False]

        ask(api)


def test_a_place_is_free_again_when_its_request_has_been_answered(api, settings, monkeypatch):
    settings.OJS = settings.OJS | {"MAX_WAIT": 0.01}
    monkeypatch.setattr(waiting, "PLACES", 1)

    for ask in KINDS:
        ask(api)

        with waiting.place() as granted:
            assert granted


def test_a_stream_that_its_client_leaves_gives_its_place_back(monkeypatch):
    monkeypatch.setattr(waiting, "PLACES", 1)
    looks = waiting.looks(lambda: "how it stands", 3600)
    assert [next(looks), next(looks)] == ["how it stands"] * 2
    with waiting.place() as granted:
        assert not granted

    looks.close()

    with waiting.place() as granted:
        assert granted


def nobody_may_wait():
    raise AssertionError("A request wants to wait.")


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("path", "status", "media_type"),
    [
        ("progress/stream", "200 OK", "text/event-stream"),
        ("result?wait=true&timeout=3600", "408 Request Timeout", "application/json"),
        ("result", "200 OK", "application/json"),
    ],
)
def test_a_head_is_answered_without_waiting(
    transactional_db, settings, monkeypatch, path, status, media_type, fast
):
    more = {"MAX_WAIT": 3600, "FAST_PATH": fast, "ALLOW_ANONYMOUS": True}
    settings.OJS = settings.OJS | more
    monkeypatch.setattr(waiting, "place", nobody_may_wait)
    job = JobFactory(active=True)
    path, _, query = f"/ojs/v1/jobs/{job.pk}/{path}".partition("?")
    asked = {"HTTP_ACCEPT": "application/json", "QUERY_STRING": query}

    found, headers, body = answered(get_wsgi_application(), environment("HEAD", path, b"", asked))

    assert (found, headers["Content-Type"]) == (status, media_type)
    if path.endswith("stream"):
        assert body == b"" and "Content-Length" not in headers
