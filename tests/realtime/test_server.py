"""Live events from outside: a real server, with curl, Node and Python as clients."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import websockets

from jobs.http.authentication import make_key
from tests import processes
from tests.ojs_client import OJSClient

from . import stories
from .loops import PATIENCE, Reader

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "realtime.md").read_text()
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")


def block(language, starts):
    blocks = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S)
    return next(text for text in blocks if text.startswith(starts))


@pytest.fixture
def secret():
    return make_key("docs", scopes=["produce", "work"])[1]


def events_of(text):
    """The names and data of the server-sent events in a text."""
    reader = Reader(None)
    reader.take(text.encode())
    return [(one.event, one.data) for one in reader._ready]


def run(command, text):
    """Run a program with the text as input and return its output."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_guides_curl_session_prints_what_it_says(database_url, tmp_path, secret):
    with processes.server(tmp_path, processes.environment(database_url)) as api:
        session = block("bash", "OJS=").replace("http://127.0.0.1:8000", api.url)
        session = session.replace("ojs_your_key", secret)
        printed = run(["bash", "-euo", "pipefail"], session)

    ((name, data),) = events_of(printed)
    assert printed.startswith("retry: 3000\nid: evt_")
    assert (name, data["from"], data["to"]) == ("job.state_changed", "available", "cancelled")
    shown = re.search(r"^```text\n(retry:.*?)```", GUIDE, re.S | re.M)[1]
    ((shown, example),) = events_of(f"{shown}\n")
    assert (shown, example.keys()) == (name, data.keys())


@needs_node
def test_the_guides_javascript_follows_a_queue_and_comes_back(database_url, tmp_path, secret):
    use = """
      const heard = [];
      follow(`${BASE}/ojs/v1/queues/default/events`, KEY, (name, data) => {
        console.log(JSON.stringify([name, data.to]));
        heard.push(name);
        return heard.length < 3;
      });
    """
    stories.enqueue()
    with processes.server(tmp_path, processes.environment(database_url)) as api:
        script = f"const BASE = {api.url!r}, KEY = {secret!r};\n{block('javascript', 'async')}{use}"
        log = tmp_path / "node.log"
        command = ["node", "--input-type=module", "-e", script]
        with processes.running(command, log, processes.environment(database_url)) as node:
            # At least one of these comes after it has begun to listen.
            def began():
                stories.enqueue()
                return "job.state_changed" in node.output

            processes.eventually(began, lambda: node.output)
            stories.enqueue_many(3)
            assert node.wait() == 0

    assert [json.loads(line) for line in node.output.splitlines()] == [
        ["job.state_changed", "available"]
    ] * 3


@needs_node
def test_the_guides_javascript_listens_on_a_websocket(database_url, tmp_path, secret):
    use = """
      listen(`${BASE.replace("http", "ws")}/ojs/v1/ws`, KEY, ["all"], (message, socket) => {
        console.log(JSON.stringify(message));
        if (message.type === "event") socket.close();
      });
    """
    with processes.server(tmp_path, processes.environment(database_url)) as api:
        script = (
            f"const BASE = {api.url!r}, KEY = {secret!r};\n{block('javascript', 'function')}{use}"
        )
        command = ["node", "--experimental-websocket", "--no-warnings", "-e", script]
        log = tmp_path / "node.log"
        with processes.running(command, log, processes.environment(database_url)) as node:
            node.wait_for("subscribed")
            stories.enqueue()
            assert node.wait() == 0

    subscribed, event = map(json.loads, node.output.splitlines())
    assert subscribed == {"type": "subscribed", "channel": "all"}
    assert (event["event"], event["channel"]) == ("job.state_changed", "all")


def test_what_is_refused_is_an_ojs_error_and_no_stream(database_url, tmp_path, secret):
    header = {"Authorization": f"Bearer {secret}"}
    missing = "01926f5e-7a3c-7def-8000-111111111111"
    with processes.server(tmp_path, processes.environment(database_url)) as api:
        replies = [
            httpx.get(f"{api.url}/ojs/v1/{path}", headers=headers, timeout=PATIENCE)
            for path, headers in (
                (f"jobs/{missing}/events", header),
                ("queues/none/events", header),
                ("events/stream?channel=topic:x", header),
                ("events/stream", {}),
                ("ws", header),
            )
        ]
        manifest = api.call("GET", "/ojs/manifest")[1]

    codes = [(reply.status_code, reply.json()["error"]["code"]) for reply in replies]
    assert codes == [
        (404, "not_found"),
        (404, "not_found"),
        (400, "invalid_request"),
        (401, "unauthenticated"),
        (426, "invalid_request"),
    ]
    assert manifest["capabilities"]["realtime"] is True
    assert "urn:ojs:ext:experimental:realtime" in manifest["extensions"]
    assert manifest["endpoints"]["events"] == "/ojs/v1/events/stream"


@pytest.mark.parametrize("interface", ["asgi", "granian"])
def test_fifty_subscribers_hear_everything_and_the_end(database_url, tmp_path, secret, interface):
    environment = processes.environment(database_url)
    headers = {"Authorization": f"Bearer {secret}"}
    count = 20
    stories.enqueue()

    async def follow(client, url, begun, heard):
        async with client.stream("GET", url) as response:
            assert response.headers["content-type"] == "text/event-stream"
            reader = await Reader(response.aiter_bytes()).open()
            begun.release()
            sent = await reader.several(count)
            heard.release()
            return sent, await reader.rest()

    async def talk(url, begun, heard):
        address = f"{url.replace('http', 'ws')}/ojs/v1/ws"
        async with websockets.connect(address, additional_headers=headers, proxy=None) as socket:
            await socket.send('{"action":"subscribe","channel":"queue:default"}')
            await socket.recv()
            begun.release()
            found = [json.loads(await socket.recv()) for _ in range(count)]
            heard.release()
            goodbye = json.loads(await socket.recv())
            return found, goodbye["event"]

    async def story(api):
        begun, heard = asyncio.Semaphore(0), asyncio.Semaphore(0)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE, limits=limits) as client:
            address = f"{api.url}/ojs/v1/queues/default/events"
            following = [follow(client, address, begun, heard) for _ in range(50)]
            talking = [talk(api.url, begun, heard) for _ in range(5)]
            tasks = [asyncio.create_task(one) for one in (*following, *talking)]
            for _ in tasks:
                await begun.acquire()
            ids = await asyncio.to_thread(stories.enqueue_many, count)
            for _ in tasks:
                await heard.acquire()
            api.started.process.terminate()
            results = await asyncio.gather(*tasks)
            return [str(one) for one in ids], results[:50], results[50:]

    async def in_time(api):
        async with asyncio.timeout(PATIENCE):
            return await story(api)

    with processes.server(tmp_path, environment, interface=interface) as api:
        expected, streams, sockets = asyncio.run(in_time(api))

    for sent, (goodbye,) in streams:
        assert [one.data["job_id"] for one in sent] == expected
        assert goodbye.event == "server.shutdown"
    for messages, goodbye in sockets:
        assert [one["data"]["job_id"] for one in messages] == expected
        assert goodbye == "server.shutdown"


def test_without_an_event_loop_the_refusal_says_what_is_needed(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    job_id = stories.enqueue()
    client = OJSClient()

    for path in (f"jobs/{job_id}/events", "queues/default/events", "events/stream"):
        reply = client.get(f"/ojs/v1/{path}")
        assert reply.status_code == 501
        assert "ojs_project.asgi" in reply.json()["error"]["hint"]
    assert client.get("/ojs/manifest").json()["capabilities"]["realtime"] is False
