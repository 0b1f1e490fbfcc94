"""Keys that change while a request over HTTP waits, on real servers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import ApiKey, Job
from jobs.spec.lifecycle import State
from tests import processes
from tests.conftest import url_of_test_database
from tests.factories import JobFactory, WorkerFactory

from .kinds import expire, narrow, revoke

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

TEN_MINUTES = 600


@pytest.fixture(scope="module", params=["asgi", "wsgi"])
def url(request, django_db_setup, tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    environment = processes.environment(
        url_of_test_database(), API_KEY_CACHE=0, MAX_WAIT=TEN_MINUTES, WAIT_POLL_INTERVAL="0.2"
    )
    with processes.server(folder, environment, interface=request.param) as api:
        yield api.url


Asked = tuple[str, str, Any, dict[str, str]]
"""Method, path, body and headers of a request that would wait for ten minutes."""


def fetch() -> Asked:
    asked = {"queues": ["default"], "worker_id": "w", "wait_ms": TEN_MINUTES * 1000}
    return "POST", "workers/fetch", asked, {}


def result() -> Asked:
    job = JobFactory(active=True)
    return "GET", f"jobs/{job.pk}/result?wait=true&timeout={TEN_MINUTES}", None, {}


def enqueue() -> Asked:
    engine.queues.configure("full", {"max_depth": 1, "strategy": "block"})
    JobFactory(queue="full")
    job = {"type": "email.send", "args": [], "options": {"queue": "full"}}
    return "POST", "jobs", job, {"OJS-Block-Timeout": str(TEN_MINUTES)}


def progress() -> Asked:
    job = JobFactory(active=True)
    return "GET", f"jobs/{job.pk}/progress/stream", None, {}


@pytest.fixture
def outcome_of(url) -> Callable[[Asked, Callable[[Any], None]], tuple[int, bytes]]:
    """Send a request, change its key while it waits; return the status and the body."""

    def ask(asked: Asked, key: str) -> tuple[int, bytes]:
        method, path, body, headers = asked
        request = urllib.request.Request(
            f"{url}/ojs/v1/{path}",
            None if body is None else json.dumps(body).encode(),
            headers | {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=processes.PATIENCE) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()

    def outcome(asked: Asked, change: Callable[[Any], None]) -> tuple[int, bytes]:
        key = make_key("key", scopes=["work", "produce"])[1]
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(ask, asked, key)
            # The request has been let in.
            processes.eventually(ApiKey.objects.filter(last_used_at__isnull=False).exists)
            change(ApiKey.objects.all())
            return reply.result()

    return outcome


def bind(keys: Any) -> None:
    keys.update(worker_id="other")


def give_away(keys: Any) -> None:
    keys.update(project="acme")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (revoke, 401, "unauthenticated"),
        (expire, 401, "token_expired"),
        (narrow, 403, "permission_denied"),
        (bind, 403, "permission_denied"),
        (give_away, 403, "permission_denied"),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_a_waiting_fetch_is_refused_when_its_key_allows_it_no_longer(
    outcome_of, change, status, code
):
    WorkerFactory(worker_id="w")

    found, body = outcome_of(fetch(), change)

    assert (found, json.loads(body)["error"]["code"]) == (status, code)
    JobFactory()
    assert Job.objects.get().state == State.AVAILABLE


@pytest.mark.parametrize("asked", [result, enqueue])
def test_so_is_whatever_else_waits(outcome_of, asked):
    found, body = outcome_of(asked(), revoke)

    assert (found, json.loads(body)["error"]["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize("change", [revoke, narrow])
def test_a_stream_of_progress_ends(outcome_of, change):
    assert outcome_of(progress(), change) == (200, b"retry: 1000\n\n")
