"""A site that includes `workers.urls` on real servers: WSGI, ASGI, and `JobServer` around it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
import pytest
import websockets

from jobs.http.authentication import make_key
from jobs.http.waiting import PLACES
from jobs.models import Job
from jobs.spec.lifecycle import State
from tests import processes
from tests.database import connection
from tests.once import once_is_enough

pytestmark = [once_is_enough, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

HOST_SITE = processes.ROOT / "tests" / "host_site"
GUIDE = (processes.ROOT / "docs" / "django.md").read_text()
WSGI = ("wsgi", "host_wsgi:application")
ASGI = ("asgi", "host_asgi:application")
DOOR = ("asgi", "host_door:application")
OTHER_DOOR = ("uvicorn", "host_door:application")
DOORS = [DOOR, OTHER_DOOR]
OTHER_ASGI = ("uvicorn", "host_asgi:application")
EVERY = [WSGI, ASGI, OTHER_ASGI, *DOORS]
HOUR = 3_600_000


def of(*ways):
    """Run a test on these servers only."""
    names = ["-".join(way).removesuffix(":application") for way in ways]
    return pytest.mark.parametrize("way", ways, ids=names)


def environment(folder):
    """The site has everything, including its jobs, in the tests' database."""
    here = connection.settings_dict
    names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    database = {name: here[name] for name in names if name in here}
    database["NAME"] = str(database["NAME"])
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith(processes.OURS)
    }
    return inherited | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(HOST_SITE), str(processes.ROOT)]),
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": "host_settings",
        "SHOP_DATABASES": json.dumps({"default": database, "queue": database}),
        "SHOP_OJS": json.dumps({"MAX_WAIT": 3600}),
    }


@pytest.fixture
def secret(transactional_db):
    return make_key("shop", scopes=["produce", "work"])[1]


@pytest.fixture
def api(way, tmp_path, secret):
    interface, application = way
    with processes.server(
        tmp_path, environment(tmp_path), 2, interface, application=application
    ) as started:
        yield started


@pytest.fixture
def client(api, secret):
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": processes.MEDIA_TYPE}
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(
        base_url=api.url, headers=headers, timeout=processes.PATIENCE, limits=limits
    ) as made:
        yield made


def push(client, *numbers):
    found = []
    for number in numbers:
        reply = client.post("/ojs/v1/jobs", json={"type": "shop.hire", "args": [number]})
        assert reply.status_code == 201, reply.text
        found.append(reply.json()["job"]["id"])
    return found


def fetch(client, worker_id, wait_ms=0):
    body = {"queues": ["default"], "worker_id": worker_id, "wait_ms": wait_ms}
    reply = client.post("/ojs/v1/workers/fetch", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["jobs"]


@of(*EVERY)
def test_a_job_goes_its_way_through_the_sites_middleware(client):
    document = json.dumps({"type": "shop.hire", "args": [1]}).encode()
    chunks = (document[at : at + 8] for at in range(0, len(document), 8))
    made = client.post("/ojs/v1/jobs", content=chunks)
    assert made.status_code == 201, made.text

    (job,) = fetch(client, "w")
    beat = client.post("/ojs/v1/workers/heartbeat", json={"worker_id": "w", "state": "running"})
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(client.get, f"/ojs/v1/jobs/{job['id']}/result?wait=true&timeout=3600")
        ack = {"job_id": job["id"], "worker_id": "w", "result": {"hired": 1}}
        done = client.post("/ojs/v1/workers/ack", json=ack)
        waited = result.result()

    assert job["args"] == [1]
    assert waited.json()["result"] == {"hired": 1}
    for reply in (made, beat, done, waited):
        assert reply.status_code < 300, reply.text
        assert reply.headers["X-Shop"] == "signed"
        assert int(reply.headers["Content-Length"]) == len(reply.content)


@of(*EVERY)
def test_a_fetch_that_waits_gets_the_job_that_comes(client):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fetch, client, "w", HOUR)
        push(client, 7)

        assert [job["args"] for job in waiting.result()] == [[7]]


@of(ASGI, *DOORS)
def test_places_to_wait_in_are_few_without_the_front_door_and_many_with_it(client, way):
    some = PLACES + 6
    with ThreadPoolExecutor(some) as pool:
        waiting = [pool.submit(fetch, client, f"w-{number}", HOUR) for number in range(some)]
        given = []
        if way == ASGI:
            empty = [next(done).result() for done in [as_completed(waiting)] for _ in range(6)]
            assert empty == [[]] * 6
            some = PLACES
        push(client, *range(some))
        for one in waiting:
            given += [job["args"] for job in one.result()]

    assert sorted(given) == [[number] for number in range(some)]


@of(WSGI, ASGI)
def test_streams_are_refused_with_what_they_need(client, way):
    (job,) = push(client, 1)
    paths = [f"jobs/{job}/events", "queues/default/events", "events/stream"]
    if way == ASGI:  # Django would buffer the whole stream
        paths.append(f"jobs/{job}/progress/stream")

    for path in paths:
        reply = client.get(f"/ojs/v1/{path}")
        assert reply.status_code == 501, path
        assert "JobServer.around" in reply.json()["error"]["hint"]
    manifest = client.get("/ojs/manifest").json()
    assert manifest["capabilities"]["realtime"] is False
    assert "rota" not in manifest["protocols"]


@of(*DOORS)
@pytest.mark.parametrize("path", ["events", "progress/stream"])
def test_the_front_door_streams(client, path):
    (job,) = push(client, 1)

    with client.stream("GET", f"/ojs/v1/jobs/{job}/{path}") as reply:
        assert reply.status_code == 200
        assert reply.headers["X-Shop"] == "signed"
        begun = next(reply.iter_text())

    assert begun.startswith("retry: ")


def said(url, *messages, **headers):
    """Return the first answer on a WebSocket, or the status of the refusal."""

    async def talk():
        try:
            async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
                for message in messages:
                    await socket.send(message)
                return await socket.recv() if messages else 101
        except websockets.InvalidStatus as refusal:
            return refusal.response.status_code

    return asyncio.run(asyncio.wait_for(talk(), processes.PATIENCE))


@of(ASGI, *DOORS)
def test_what_is_the_sites_own_works_as_before(api, client, way):
    page = client.get("/shop/hours")
    forged = httpx.post(f"{api.url}/shop/hours", timeout=processes.PATIENCE)
    assert page.json() == {"request": "ASGIRequest"}
    assert page.headers["X-Shop"] == "signed"
    assert forged.status_code == 403
    assert said(f"ws{api.url.removeprefix('http')}/shop/echo", "bells") == "The shop hears bells."
    api.started.wait_for("The shop opens.")
    api.started.terminate()
    assert "The shop closes." in api.started.output


@of(*DOORS)
def test_the_front_door_serves_the_websockets_of_workers(api, client, secret):
    address = f"ws{api.url.removeprefix('http')}"
    key = {"Authorization": f"Bearer {secret}"}
    subscribe = json.dumps({"action": "subscribe", "channel": "all"})

    assert json.loads(said(f"{address}/ojs/v1/ws", subscribe, **key))["type"] == "subscribed"
    assert said(f"{address}/work", **key) == 101
    assert said(f"{address}/work") != 101
    assert said(f"{address}/ojs/v1/nothing", **key) in (403, 404)
    assert client.get("/ojs/manifest").json()["endpoints"]["rota"] == f"{address}/work"


@of(*EVERY)
def test_a_key_and_a_host_are_asked_for(api, client):
    body = {"type": "shop.hire", "args": [1]}

    stranger = httpx.post(f"{api.url}/ojs/v1/jobs", json=body, timeout=processes.PATIENCE)
    rebound = client.post("/ojs/v1/jobs", json=body, headers={"Host": "evil.example"})

    assert (stranger.status_code, rebound.status_code) == (401, 400)
    assert not Job.objects.exists()


@pytest.mark.parametrize("interface", ["asgi", "uvicorn"])
def test_the_guides_application_serves_workers_and_the_site(tmp_path, secret, interface):
    block = next(
        text
        for text in re.findall(r"```python\n(.*?)```", GUIDE, re.S)
        if text.startswith("# shop/asgi.py")
    )
    (tmp_path / "guide.py").write_text(block)
    header = {"Authorization": f"Bearer {secret}"}

    with (
        processes.server(
            tmp_path, environment(tmp_path), 2, interface, application="guide:application"
        ) as api,
        httpx.Client(base_url=api.url, headers=header, timeout=processes.PATIENCE) as client,
    ):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(fetch, client, "w", HOUR)
            push(client, 7)
            assert [job["args"] for job in waiting.result()] == [[7]]
        assert client.get("/shop/hours").json() == {"request": "ASGIRequest"}
    assert Job.objects.get().state == State.ACTIVE
