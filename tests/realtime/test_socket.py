"""Events of many channels over one WebSocket (OJS realtime §3, §5.5.2, §5.6.2)."""

from __future__ import annotations

import asyncio
import json

import pytest

from jobs.http.authentication import forget_keys, make_key
from jobs.models import ApiKey, Event
from jobs.realtime import socket
from jobs.record import events
from jobs.store import clock

from . import stories
from .loops import PATIENCE, on_loop

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

HOST = {"HTTP_HOST": "testserver", "SERVER_NAME": "testserver", "SERVER_PORT": "80"}
HOST |= {"REMOTE_ADDR": "127.0.0.1", "wsgi.url_scheme": "http"}


@pytest.fixture(autouse=True)
def _open(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True, "REALTIME_RATE_LIMIT_PER_SECOND": 0}


class Client:
    """The client's end of a WebSocket, and the server's."""

    def __init__(self, subprotocols=("ojs.v1",), **meta):
        self.meta = HOST | meta
        self.subprotocols = list(subprotocols)
        self.close_code = None
        self.refused = None
        self.chosen = None
        self.closed_with = None
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self._to_server = asyncio.Queue()
        self._to_client = asyncio.Queue()
        self._serving = None

    # The server's interface

    async def refuse(self, status, text):
        self.refused = (status, text)
        self._to_client.put_nowait(None)

    async def accept(self, subprotocol=None):
        self.chosen = subprotocol

    async def receive(self):
        return await self._to_server.get()

    async def send(self, text):
        await self.is_reading.wait()
        self._to_client.put_nowait(text)

    async def close(self, code=1000, reason=""):
        if self.closed_with is None:
            self.closed_with = code
            self._to_server.put_nowait(None)
            self._to_client.put_nowait(None)

    # The client's interface

    def connect(self, loop):
        self._serving = asyncio.create_task(socket.serve(loop, self))
        return self

    def say(self, **message):
        self.write(json.dumps(message))

    def write(self, text):
        self._to_server.put_nowait(text)

    async def read(self):
        """Return the next message; None once the connection has been closed."""
        async with asyncio.timeout(PATIENCE):
            text = await self._to_client.get()
        return None if text is None else json.loads(text)

    async def several(self, count):
        return [await self.read() for _ in range(count)]

    async def subscribe(self, loop, channel):
        """Subscribe, and wait until the hub passes it new events itself.

        Until then the subscription catches up, as slowly as the client reads, and loses nothing.
        """
        await self.ask(action="subscribe", channel=channel)
        while ("", channel) not in loop.hub._live:
            await asyncio.sleep(0)

    async def ask(self, **message):
        self.say(**message)
        return await self.read()

    async def leave(self):
        self._to_server.put_nowait(None)
        await self._serving

    async def end(self):
        """Read until the server has closed the connection."""
        found = []
        while (message := await self.read()) is not None:
            found.append(message)
        await self._serving
        return found


def talk(story, **meta):
    async def with_client(loop):
        client = Client(**meta).connect(loop)
        try:
            return await story(loop, client)
        finally:
            await client.leave()

    return on_loop(with_client)


# §3.2, §3.3, §3.4, §8.2


def test_a_client_subscribes_hears_and_unsubscribes():
    async def story(loop, client):
        job_id = await loop.in_thread(stories.enqueue)
        said = [await client.ask(action="subscribe", channel="queue:default")]
        await loop.in_thread(stories.run)
        said += await client.several(2)
        said.append(await client.ask(action="unsubscribe", channel="queue:default"))
        # Events from now on are not sent: the next message is the answer to this one.
        await loop.in_thread(stories.enqueue)
        said.append(await client.ask(action="subscribe", channel=f"job:{job_id}"))
        return str(job_id), said, client.chosen

    job_id, (subscribed, started, completed, unsubscribed, again), chosen = talk(story)

    assert chosen == "ojs.v1"
    assert subscribed == {"type": "subscribed", "channel": "queue:default"}
    assert unsubscribed == {"type": "unsubscribed", "channel": "queue:default"}
    assert again == {"type": "subscribed", "channel": f"job:{job_id}"}
    for message, move in ((started, ("available", "active")), (completed, ("active", "completed"))):
        timestamp = message["timestamp"]
        assert message == {
            "type": "event",
            "channel": "queue:default",
            "event": "job.state_changed",
            "data": {
                "job_id": job_id,
                "queue": "default",
                "type": "email.send",
                "from": move[0],
                "to": move[1],
                "timestamp": timestamp,
            },
            "id": message["id"],
            "timestamp": timestamp,
        }
    assert started["id"] < completed["id"]


def test_an_event_of_several_channels_is_sent_on_each():
    async def story(loop, client):
        job_id = await loop.in_thread(stories.enqueue)
        names = ["all", "queue:default", f"job:{job_id}"]
        for name in names:
            await client.ask(action="subscribe", channel=name)
        await loop.in_thread(stories.fetch)
        return names, await client.several(3)

    names, sent = talk(story)

    assert {message["channel"] for message in sent} == set(names)
    assert len({message["id"] for message in sent}) == 1


def test_a_client_that_subscribes_to_an_ended_job_gets_its_end():
    async def story(loop, client):
        job_id = await loop.in_thread(stories.finish)
        await client.ask(action="subscribe", channel=f"job:{job_id}")
        return await client.read()

    message = talk(story)

    assert (message["data"]["from"], message["data"]["to"]) == ("active", "completed")


ALL = {"action": "subscribe", "channel": "all"}


@pytest.mark.parametrize(
    ("said", "code", "about"),
    [
        (
            {"action": "subscribe", "channel": "job:01926f5e-7a3c-7def-8000-111111111111"},
            "not_found",
            "Job",
        ),
        ({"action": "subscribe", "channel": "queue:none"}, "not_found", "Queue"),
        ({"action": "subscribe", "channel": "topic:x"}, "invalid_request", "topic:x"),
        ({"action": "subscribe", "channel": "queue:a\0"}, "invalid_payload", "$.channel"),
        ({"action": "resume", "last_event_id": "\0"}, "invalid_payload", "$.last_event_id"),
        ({"action": "subscribe"}, "invalid_request", "channel"),
        ({"action": "subscribe", "channel": 7}, "invalid_request", "channel"),
        (ALL | {"event_types": "x"}, "invalid_request", "event_types"),
        (ALL | {"event_types": [1]}, "invalid_request", "event_types"),
        ({"action": "dance"}, "invalid_request", "dance"),
        ({}, "invalid_request", "action"),
        ([], "invalid_payload", "JSON object"),
        ("nonsense", "invalid_payload", "JSON object"),
        ({"action": "resume", "last_event_id": "evt_0042"}, "unknown_event_id", "full state sync"),
        ({"action": "resume"}, "invalid_request", "last_event_id"),
    ],
)
def test_what_cannot_be_done_is_an_error_and_the_connection_goes_on(said, code, about):
    async def story(loop, client):
        client.write(said if said == "nonsense" else json.dumps(said))
        return await client.read(), await client.ask(action="subscribe", channel="all")

    error, after = talk(story)

    assert (error["type"], error["code"]) == ("error", code)
    assert about in error["message"]
    assert after["type"] == "subscribed"


def test_a_message_that_is_too_long_ends_the_connection():
    async def story(loop, client):
        client.say(action="subscribe", channel="x" * socket.MOST_TEXT)
        return await client.end(), client.closed_with

    (error,), code = talk(story)

    assert error["type"] == "error"
    assert code == 1009


def test_a_client_may_follow_so_many_channels(settings):
    settings.OJS = settings.OJS | {"REALTIME_SUBSCRIPTIONS": 2}

    async def story(loop, client):
        for name in ("one", "two", "three"):
            await loop.in_thread(stories.enqueue, name)
        asked = [
            {"action": "subscribe", "channel": "queue:one"},
            {"action": "subscribe", "channel": "queue:two"},
            {"action": "subscribe", "channel": "queue:three"},
            # The same channel again does not count as a third.
            {"action": "subscribe", "channel": "queue:two"},
            {"action": "unsubscribe", "channel": "queue:one"},
            {"action": "subscribe", "channel": "queue:three"},
        ]
        return [(await client.ask(**message))["type"] for message in asked]

    assert talk(story) == [
        "subscribed",
        "subscribed",
        "error",
        "subscribed",
        "unsubscribed",
        "subscribed",
    ]


# §5.6.2, §8.5


def test_a_filter_is_confirmed_and_can_be_replaced():
    async def story(loop, client):
        await loop.in_thread(stories.enqueue)
        wish = {"action": "subscribe", "channel": "queue:default"}
        said = [await client.ask(**wish, event_types=["job.completed"])]
        await loop.in_thread(stories.run)
        heard = [await client.read()]
        said.append(await client.ask(**wish, event_types=["job.state_changed", "job.progress"]))
        await loop.in_thread(stories.enqueue)
        heard.append(await client.read())
        said.append(await client.ask(**wish))
        return said, heard

    said, heard = talk(story)

    confirmed = {"type": "subscribed", "channel": "queue:default"}
    assert said == [
        confirmed | {"event_types": ["job.completed"]},
        confirmed | {"event_types": ["job.state_changed", "job.progress"]},
        confirmed,
    ]
    assert [one["event"] for one in heard] == ["job.completed", "job.state_changed"]


# §5.5.2


def test_a_client_that_comes_back_resumes_with_the_channels_it_had():
    async def first(loop, client):
        await loop.in_thread(stories.enqueue, "mail")
        await client.ask(
            action="subscribe", channel="queue:mail", event_types=["job.state_changed"]
        )
        await loop.in_thread(stories.enqueue, "mail")
        heard = await client.read()
        await client.leave()
        missed = await loop.in_thread(stories.enqueue, "mail")
        again = Client().connect(loop)
        said = await again.ask(action="resume", last_event_id=heard["id"])
        sent = [await again.read()]
        new = await loop.in_thread(stories.enqueue, "mail")
        sent.append(await again.read())
        await again.leave()
        return [str(missed), str(new)], said, sent

    expected, said, sent = talk(first)

    assert said == {
        "type": "subscribed",
        "channel": "queue:mail",
        "event_types": ["job.state_changed"],
    }
    assert [one["data"]["job_id"] for one in sent] == expected


def test_a_client_that_has_subscribed_again_resumes_without_hearing_anything_twice():
    async def story(loop, client):
        await loop.in_thread(stories.enqueue)
        before = events.cursor_of(await loop.in_thread(Event.objects.latest, "id"))
        missed = await loop.in_thread(stories.enqueue_many, 3)
        await client.ask(action="subscribe", channel="all")
        new = await loop.in_thread(stories.enqueue_many, 2)
        heard = await client.several(2)
        client.say(action="resume", last_event_id=before)
        heard += await client.several(3)
        client.say(action="resume", last_event_id=before)
        later = await loop.in_thread(stories.enqueue)
        heard.append(await client.read())
        return [*new, *missed, later], heard

    expected, heard = talk(story)

    assert [one["data"]["job_id"] for one in heard] == [str(one) for one in expected]


def test_a_subscription_may_say_where_it_goes_on():
    async def story(loop, client):
        await loop.in_thread(stories.enqueue)
        before = events.cursor_of(await loop.in_thread(Event.objects.latest, "id"))
        missed = await loop.in_thread(stories.enqueue)
        await client.ask(action="subscribe", channel="all", last_event_id=before)
        heard = [await client.read()]
        await client.ask(action="subscribe", channel="queue:default", last_event_id="evt_0042")
        return str(missed), [*heard, await client.read()]

    missed, (event, gap) = talk(story)

    assert event["data"]["job_id"] == missed
    assert (gap["event"], gap["channel"]) == ("system.gap", "queue:default")
    assert gap["data"]["channel"] == "queue:default"


@pytest.mark.parametrize("ended", [True, False])
def test_nothing_is_dropped_of_what_a_client_missed_of_a_job(settings, ended):
    settings.OJS = settings.OJS | {"REALTIME_BUFFER_SIZE": 5}

    async def story(loop, client):
        job_id = await loop.in_thread(stories.finish if ended else stories.enqueue)
        await loop.in_thread(stories.report_progress, job_id, 30)
        newest = events.cursor_of(await loop.in_thread(Event.objects.latest, "id"))
        start = events.cursor_of(Event(pk=0))
        await client.ask(action="subscribe", channel=f"job:{job_id}", last_event_id=start)
        heard = [await client.read()]
        while heard[-1].get("id") != newest:
            heard.append(await client.read())
        return heard

    heard = talk(story)

    assert [one["type"] for one in heard] == ["event"] * len(heard)
    assert [one["id"] for one in heard] == [
        events.cursor_of(event) for event in Event.objects.exclude(job_type="").order_by("id")
    ]
    assert len(heard) > 30


# §5.4, §8.4


def test_a_slow_client_is_warned_and_gets_the_number_it_missed(settings):
    settings.OJS = settings.OJS | {"REALTIME_BUFFER_SIZE": 5}

    async def story(loop, client):
        await client.subscribe(loop, "all")
        client.is_reading.clear()
        await loop.in_thread(stories.enqueue_many, 30)
        newest = (await loop.in_thread(Event.objects.latest, "id")).pk
        while loop.hub.position < newest:
            await asyncio.sleep(0)
        client.is_reading.set()
        heard = []
        while len(heard) < 2 or heard[-1]["id"] != events.cursor_of(Event(pk=newest)):
            heard.append(await client.read())
        return heard

    heard = talk(story)

    place = next(index for index, one in enumerate(heard) if one["type"] == "warning")
    warning, notice = heard[place : place + 2]
    assert warning.pop("count") == notice["data"]["dropped_count"] > 0
    assert warning == {
        "type": "warning",
        "code": "events_dropped",
        "channel": "all",
        "oldest_dropped_id": notice["data"]["oldest_dropped_id"],
        "newest_dropped_id": notice["data"]["newest_dropped_id"],
    }
    assert notice["event"] == "system.events_dropped"
    with_client = [one for one in heard if one["type"] == "event" and one is not notice]
    assert len(with_client) + notice["data"]["dropped_count"] == 30


def test_a_client_that_reads_nothing_at_all_is_let_go(monkeypatch):
    monkeypatch.setattr(socket, "SLOWEST_READER", 0.05)

    async def story(loop, client):
        await client.ask(action="subscribe", channel="all")
        client.is_reading.clear()
        await loop.in_thread(stories.enqueue)
        assert await client.end() == []
        return client.closed_with

    assert talk(story) == 1013


# §3.5, §5.1


def test_silence_is_broken_and_pings_are_answered(monkeypatch):
    monkeypatch.setattr(socket, "PING", 0.05)

    async def story(loop, client):
        heard = [await client.read()]
        client.say(action="ping")
        while heard[-1]["type"] == "ping":
            heard.append(await client.read())
        return heard

    first, *_, last = talk(story)

    assert (first["type"], last["type"]) == ("ping", "pong")


def test_the_end_of_the_server_is_announced():
    async def story(loop, client):
        await client.ask(action="subscribe", channel="all")
        loop.ending.set()
        return await client.end(), client.closed_with

    (goodbye,), code = talk(story)

    assert (goodbye["type"], goodbye["event"]) == ("event", "server.shutdown")
    assert type(goodbye["data"]["grace_period_ms"]) is int
    assert code == 1001


# §6


@pytest.fixture
def key(settings):
    settings.OJS = {"API_KEY_CACHE": 0, "REALTIME_RATE_LIMIT_PER_SECOND": 0}
    yield lambda **more: make_key("reader", **{"scopes": ["produce"], **more})
    forget_keys()


def test_a_key_comes_in_the_header_or_as_a_subprotocol(key):
    _, secret = key()

    async def story(loop, client):
        return await client.ask(action="subscribe", channel="all"), client.chosen

    by_header = talk(story, HTTP_AUTHORIZATION=f"Bearer {secret}")
    by_subprotocol = talk(story, subprotocols=["ojs.v1", f"bearer.{secret}"])

    for answer, chosen in (by_header, by_subprotocol):
        assert (answer["type"], chosen) == ("subscribed", "ojs.v1")


@pytest.mark.parametrize(("scopes", "status"), [(None, 401), (["work"], 403)])
def test_a_client_without_a_key_for_events_is_refused_before_it_is_accepted(key, scopes, status):
    header = {} if scopes is None else {"HTTP_AUTHORIZATION": f"Bearer {key(scopes=scopes)[1]}"}

    async def story(loop):
        client = Client(**header).connect(loop)
        assert await client.end() == []
        return client.refused

    assert on_loop(story)[0] == status


@pytest.mark.parametrize(
    ("origin", "is_served"),
    [("http://testserver", True), ("http://evil.example", False), ("null", False)],
)
def test_a_page_of_another_site_is_refused_without_a_key(origin, is_served):
    async def story(loop):
        client = Client(HTTP_ORIGIN=origin).connect(loop)
        if not is_served:
            assert await client.end() == []
            return client.refused[0]
        answer = await client.ask(action="subscribe", channel="all")
        await client.leave()
        return answer["type"]

    assert on_loop(story) == ("subscribed" if is_served else 403)


def test_a_key_of_a_project_hears_of_its_jobs_and_cannot_subscribe_to_others(key):
    _, secret = key(project="ours")

    async def story(loop, client):
        foreign = await loop.in_thread(lambda: stories.enqueue(project="theirs"))
        answers = [
            await client.ask(action="subscribe", channel="all"),
            await client.ask(action="subscribe", channel=f"job:{foreign}"),
        ]
        await loop.in_thread(lambda: stories.enqueue(project="theirs"))
        mine = await loop.in_thread(lambda: stories.enqueue(project="ours"))
        return str(mine), answers, await client.read()

    mine, (subscribed, error), event = talk(story, HTTP_AUTHORIZATION=f"Bearer {secret}")

    assert subscribed["type"] == "subscribed"
    assert error["code"] == "not_found"
    assert event["data"]["job_id"] == mine


@pytest.mark.parametrize(
    ("change", "code", "closed_with"),
    [
        ({"revoked_at": "now"}, "unauthenticated", 4401),
        ({"scopes": ["work"]}, "permission_denied", 4403),
        ({"project": "other"}, "permission_denied", 4403),
    ],
)
@pytest.mark.parametrize("says_something", [True, False])
def test_a_connection_ends_when_its_key_does_not_open_it_any_more(
    key, change, code, closed_with, says_something
):
    record, secret = key()
    change = {name: clock.now() if value == "now" else value for name, value in change.items()}

    async def story(loop, client):
        await client.ask(action="subscribe", channel="all")
        await loop.in_thread(lambda: ApiKey.objects.filter(pk=record.pk).update(**change))
        if says_something:
            client.say(action="subscribe", channel="all")
            client.say(action="unsubscribe", channel="all")
        said = await client.end()
        return said[-1], client.closed_with

    error, closed = talk(story, HTTP_AUTHORIZATION=f"Bearer {secret}")

    assert (error["type"], error["code"]) == ("error", code)
    assert closed == closed_with


def test_nothing_is_left_of_a_client_that_has_gone():
    async def story(loop):
        for _ in range(3):
            client = Client().connect(loop)
            await client.ask(action="subscribe", channel="all")
            await client.leave()
        hub = loop.hub
        return hub._connections, dict(hub._live), hub._reader

    assert on_loop(story) == (set(), {}, None)
