"""Server-sent events of jobs, queues and everything (OJS realtime §2, §4, §5)."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta

import pytest

from jobs import engine
from jobs.errors import JobNotFound, NotFound, TooManyConnections, Unsupported
from jobs.http.authentication import ANYBODY, Caller, current_caller, digest, forget_keys, make_key
from jobs.models import ApiKey, Event
from jobs.realtime import connection, hub, sse
from jobs.record import events
from jobs.store import clock
from workers import protocol

from . import stories
from .loops import listen, on_loop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _without_a_pace(settings):
    settings.OJS = {"REALTIME_RATE_LIMIT_PER_SECOND": 0}


def moves(sent):
    return [(one.data["from"], one.data["to"]) for one in sent]


# §2: jobs, queues, everything


def test_a_stream_of_a_job_tells_each_transition_and_ends_with_the_job():
    async def story(loop):
        job_id = await loop.in_thread(stories.enqueue)
        reader = await listen(loop, f"job:{job_id}")
        await loop.in_thread(stories.run)
        return job_id, await reader.rest(), reader

    job_id, sent, reader = on_loop(story)

    assert [one.event for one in sent] == ["job.state_changed"] * 2
    assert moves(sent) == [("available", "active"), ("active", "completed")]
    for one in sent:
        assert set(one.data) == {"job_id", "queue", "type", "from", "to", "timestamp"}
        assert (one.data["job_id"], one.data["queue"]) == (str(job_id), "default")
        assert one.data["type"] == "email.send"
    assert sent[0].id < sent[1].id
    assert reader.retry == 3000


def test_each_event_of_a_job_names_its_trace():
    """OJS events §8.3; a job without a trace has no such member, as the test before this shows."""

    async def story(loop):
        job_id = await loop.in_thread(
            lambda: stories.enqueue(meta={"trace_id": "4bf92f3577b34da6"})
        )
        reader = await listen(loop, f"job:{job_id}")
        await loop.in_thread(stories.run)
        return await reader.rest()

    sent = on_loop(story)

    assert [one.data["trace_id"] for one in sent] == ["4bf92f3577b34da6"] * 2


@pytest.mark.parametrize("keeps_events", [True, False])
def test_a_job_that_has_ended_is_sent_in_one_event(keeps_events):
    async def story(loop):
        job_id = await loop.in_thread(stories.finish)
        if not keeps_events:
            await loop.in_thread(Event.objects.all().delete)
        reader = await listen(loop, f"job:{job_id}")
        return await reader.rest()

    (sent,) = on_loop(story)

    assert (sent.event, sent.data["to"]) == ("job.state_changed", "completed")
    assert sent.data["from"] == ("active" if keeps_events else "completed")


def test_a_job_that_ends_while_its_stream_begins_is_sent_all_the_same(monkeypatch):
    """Between the query of the job and the first read of the record."""

    async def story(loop):
        job_id = await loop.in_thread(stories.enqueue)
        began = sse.EventStream.__call__

        def late(self, some_loop):
            stories_done = loop.in_thread(stories.run)

            async def write():
                await stories_done
                async for part in began(self, some_loop):
                    yield part

            return write()

        monkeypatch.setattr(sse.EventStream, "__call__", late)
        reader = await listen(loop, f"job:{job_id}")
        return await reader.rest()

    assert moves(on_loop(story)) == [("available", "active"), ("active", "completed")]


def test_a_stream_of_a_queue_tells_of_its_jobs_and_of_no_others():
    async def story(loop):
        await loop.in_thread(stories.enqueue, "mail")
        reader = await listen(loop, "queue:mail")
        await loop.in_thread(stories.enqueue, "other")
        mine = await loop.in_thread(stories.enqueue, "mail")
        sent = await reader.several(1)
        await reader.close()
        return mine, sent

    mine, (sent,) = on_loop(story)

    assert sent.data["job_id"] == str(mine)
    # It had no state before.
    assert moves([sent]) == [("", "available")]


def test_everything_includes_what_happens_to_queues():
    async def story(loop):
        await loop.in_thread(stories.enqueue, "mail")
        all_of_it, mail = await listen(loop, "all"), await listen(loop, "queue:mail")
        await loop.in_thread(lambda: engine.pause("mail", paused_by="ann"))
        sent = [*await all_of_it.several(1), *await mail.several(1)]
        await all_of_it.close()
        await mail.close()
        return sent

    for sent in on_loop(story):
        assert sent.event == "queue.paused"
        assert (sent.data["queue"], sent.data["paused_by"]) == ("mail", "ann")
        assert "timestamp" in sent.data


@pytest.mark.parametrize(
    ("channel", "refusal"),
    [
        ("job:01926f5e-7a3c-7def-8000-111111111111", JobNotFound),
        ("job:none", JobNotFound),
        ("queue:none", NotFound),
    ],
)
def test_what_does_not_exist_is_refused_before_the_stream_begins(channel, refusal):
    with pytest.raises(refusal):
        on_loop(lambda loop: listen(loop, channel))


def test_without_a_record_there_is_nothing_to_stream(settings):
    settings.OJS = {"RECORD_EVENTS": False}

    with pytest.raises(Unsupported):
        on_loop(lambda loop: listen(loop, "all"))


def test_progress_is_sent_as_specified():
    async def story(loop):
        await loop.in_thread(stories.enqueue)
        job = await loop.in_thread(stories.fetch)
        reader = await listen(loop, f"job:{job.id}")
        await loop.in_thread(
            lambda: engine.report_progress(
                job.id, value=0.746, message="Page 3 of 4", worker_id=stories.WORKER
            )
        )
        await loop.in_thread(stories.ack, job)
        return job, await reader.rest()

    job, (progress, end) = on_loop(story)

    assert progress.event == "job.progress"
    assert progress.data.pop("timestamp")
    assert progress.data == {"job_id": str(job.id), "progress": 75, "message": "Page 3 of 4"}
    assert moves([end]) == [("active", "completed")]


def test_heartbeats_are_sent_where_they_are_recorded(settings):
    settings.OJS = settings.OJS | {"RECORD_HEARTBEATS": True}

    async def story(loop):
        await loop.in_thread(stories.enqueue)
        job = await loop.in_thread(stories.fetch)
        reader = await listen(loop, f"job:{job.id}")
        await loop.in_thread(stories.beat, job)
        sent = await reader.several(1)
        await reader.close()
        return job, sent

    job, (sent,) = on_loop(story)

    assert sent.event == "job.heartbeat"
    assert sent.data.pop("timestamp")
    assert sent.data == {"job_id": str(job.id), "worker_id": stories.WORKER}


LATER = {"delay_until": "2100-01-01T00:00:00Z"}
PENDING = {"pending": True}


def cancel(job_id):
    engine.cancel(job_id)


@pytest.mark.parametrize(
    ("options", "happens", "expected"),
    [
        ({}, [cancel], [("available", "cancelled")]),
        (PENDING, [engine.activate], [("pending", "available")]),
        (PENDING, [cancel], [("pending", "cancelled")]),
        (LATER, [lambda one: engine.run_now([one])], [("scheduled", "available")]),
        (LATER, [cancel], [("scheduled", "cancelled")]),
        (
            {},
            [lambda one: stories.fetch(), cancel],
            [("available", "active"), ("active", "cancelled")],
        ),
        (
            {"retry": {"max_attempts": 2}},
            [lambda one: stories.fail(stories.fetch(), type="x", message="no")],
            [("available", "active"), ("active", "retryable")],
        ),
        (
            {"retry": {"max_attempts": 2}},
            [
                lambda one: stories.fail(stories.fetch(), type="x", message="no"),
                lambda one: engine.run_now([one]),
            ],
            [("available", "active"), ("active", "retryable"), ("retryable", "available")],
        ),
        (
            {"retry": {"max_attempts": 1}},
            [
                lambda one: stories.fail(stories.fetch(), type="x", message="no"),
                lambda one: engine.retry_one(one),
            ],
            [("available", "active"), ("active", "discarded"), ("discarded", "available")],
        ),
        (
            {},
            [lambda one: stories.fail(stories.fetch(), release=True)],
            [("available", "active"), ("active", "available")],
        ),
        (
            {},
            [lambda one: stories.fail(stories.fetch(), release=True, retry_in=timedelta(hours=1))],
            [("available", "active"), ("active", "retryable")],
        ),
        (
            {},
            [lambda one: stories.fetch(), lambda one: stories.lose()],
            [("available", "active"), ("active", "available")],
        ),
    ],
)
def test_every_transition_of_the_lifecycle_says_where_it_came_from(options, happens, expected):
    async def story(loop):
        job_id = await loop.in_thread(lambda: stories.enqueue(**options))
        reader = await listen(loop, "all", ["job.state_changed"])
        for step in happens:
            await loop.in_thread(step, job_id)
        sent = await reader.several(len(expected))
        await reader.close()
        return sent

    assert moves(on_loop(story)) == expected


# §5.6: filters


def test_a_filter_lets_through_the_types_that_it_names():
    async def story(loop):
        await loop.in_thread(stories.enqueue)
        readers = [
            await listen(loop, "queue:default", types)
            for types in (["job.state_changed"], ["job.completed"], ["job.*"], ["job.progress"])
        ]
        job = await loop.in_thread(stories.fetch)
        await loop.in_thread(lambda: engine.report_progress(job.id, value=0.5))
        await loop.in_thread(stories.ack, job)
        sent = [await one.several(count) for one, count in zip(readers, (2, 1, 3, 1), strict=True)]
        for reader in readers:
            await reader.close()
        return sent

    states, completed, all_of_jobs, progress = on_loop(story)

    assert moves(states) == [("available", "active"), ("active", "completed")]
    # By its name in the record, if a client asks for that.
    assert [one.event for one in completed] == ["job.completed"]
    assert completed[0].data["duration_ms"] >= 0
    assert [one.event for one in all_of_jobs] == [
        "job.state_changed",
        "job.progress",
        "job.state_changed",
    ]
    assert [one.event for one in progress] == ["job.progress"]


def test_a_stream_of_a_job_ends_with_it_even_where_the_filter_leaves_its_end_out():
    async def story(loop):
        job_id = await loop.in_thread(stories.enqueue)
        reader = await listen(loop, f"job:{job_id}", ["job.progress"])
        await loop.in_thread(stories.run)
        return await reader.rest()

    assert on_loop(story) == []


# §2.5, §5.5.1: reconnecting clients


def test_a_client_that_comes_back_gets_what_it_missed_and_then_what_is_new():
    async def story(loop):
        reader = await listen(loop, "all")
        ids = await loop.in_thread(stories.enqueue_many, 3)
        first = await reader.several(1)
        await reader.close()
        ids += await loop.in_thread(stories.enqueue_many, 2)
        again = await listen(loop, "all", last_event_id=first[0].id)
        missed = await again.several(4)
        ids += await loop.in_thread(stories.enqueue_many, 1)
        new = await again.several(1)
        await again.close()
        return ids, [*first, *missed, *new]

    ids, sent = on_loop(story)

    assert [one.data["job_id"] for one in sent] == [str(one) for one in ids]


def test_a_client_that_left_before_the_first_event_comes_back_with_the_id_of_the_beginning():
    async def story(loop):
        await loop.in_thread(stories.enqueue)
        reader = await listen(loop, "all")
        await reader.close()
        missed = await loop.in_thread(stories.enqueue)
        again = await listen(loop, "all", last_event_id=reader.last_id)
        (sent,) = await again.several(1)
        await again.close()
        return missed, sent

    missed, sent = on_loop(story)

    assert sent.data["job_id"] == str(missed)


def test_a_client_that_began_with_an_empty_record_has_missed_nothing():
    async def story(loop):
        # So that the next id is not the first.
        await loop.in_thread(stories.enqueue_many, 5)
        await loop.in_thread(Event.objects.all().delete)
        reader = await listen(loop, "all")
        await reader.close()
        missed = await loop.in_thread(stories.enqueue)
        again = await listen(loop, "all", last_event_id=reader.last_id)
        (sent,) = await again.several(1)
        await again.close()
        return missed, sent

    missed, sent = on_loop(story)

    assert sent.data.get("job_id") == str(missed)


def test_a_client_catches_up_at_once_over_ids_that_were_deleted_long_ago():
    async def story(loop):
        reader = await listen(loop, "all")
        await reader.close()
        paused = {"type": "queue.paused", "subject": "mail", "queue": "mail"}
        await loop.in_thread(lambda: Event.objects.create(pk=2**40, time=clock.now(), **paused))
        again = await listen(loop, "all", last_event_id=reader.last_id)
        (sent,) = await again.several(1)
        await again.close()
        return sent

    assert on_loop(story).event == "queue.paused"


def test_nothing_is_lost_or_sent_twice_where_replay_meets_what_is_new():
    """Clients reconnect at every moment while events are written."""
    total, clients = 200, 4

    async def story(loop):
        first = await listen(loop, "all")
        start = first.last_id
        await first.close()
        sent = []

        async def write():
            for _ in range(total // 10):
                await loop.in_thread(stories.enqueue_many, 10)

        async def read(number):
            found, last = [], start
            while len(found) < total:
                reader = await listen(loop, "queue:default", last_event_id=last)
                # Each reads a different number of events before it disconnects.
                wanted = min(total - len(found), 20 + 13 * number)
                some = await reader.several(wanted)
                found += some
                last = some[-1].id
                await reader.close()
            sent.append(found)

        await loop.in_thread(stories.enqueue_many, 1)
        await asyncio.gather(write(), *(read(number) for number in range(clients)))
        return sent

    for found in on_loop(story):
        positions = [one.id for one in found]
        assert positions == sorted(set(positions))
        jobs = [one.data["job_id"] for one in found]
        newest = list(Event.objects.order_by("id").values_list("subject", flat=True))
        assert jobs == newest[: len(jobs)]


def test_a_client_of_a_job_that_ended_meanwhile_gets_all_that_it_missed():
    async def story(loop):
        job_id = await loop.in_thread(stories.enqueue)
        reader = await listen(loop, f"job:{job_id}")
        await reader.close()
        await loop.in_thread(stories.run)
        again = await listen(loop, f"job:{job_id}", last_event_id=reader.last_id)
        return await again.rest()

    assert moves(on_loop(story)) == [("available", "active"), ("active", "completed")]


@pytest.mark.parametrize("given", ["evt_0042", "nonsense", "evt_000000000000-ffffffffffff", "gone"])
def test_events_that_the_record_no_longer_has_are_reported_as_a_gap(given):
    async def story(loop):
        job_id = await loop.in_thread(stories.enqueue)
        before = await loop.in_thread(Event.objects.latest, "id")
        identifier = events.cursor_of(before) if given == "gone" else given
        await loop.in_thread(stories.enqueue_many, 5)
        # Retention has deleted the oldest.
        newest = await loop.in_thread(Event.objects.latest, "id")
        await loop.in_thread(Event.objects.filter(pk__lt=newest.pk).delete)
        reader = await listen(loop, "all", last_event_id=identifier)
        (gap,) = await reader.several(1)
        later = await loop.in_thread(stories.enqueue)
        (sent,) = await reader.several(1)
        await reader.close()
        return gap, sent, later, newest.pk - before.pk, job_id

    gap, sent, later, distance, _ = on_loop(story)

    assert gap.event == "system.gap"
    assert gap.data["channel"] == "all"
    assert gap.data["gap_start"] <= gap.data["gap_end"]
    if given == "gone":
        assert gap.data["estimated_missed_count"] == distance - 1
    # What follows is new.
    assert sent.data["job_id"] == str(later)


# §5.4, §5.7: slow clients


def test_a_slow_client_gets_a_gap_and_then_the_newest_events(settings):
    settings.OJS = settings.OJS | {"REALTIME_BUFFER_SIZE": 10}

    async def story(loop):
        reader = await listen(loop, "all")
        ids = await loop.in_thread(stories.enqueue_many, 1)
        sent = await reader.several(1)
        # It reads nothing while these are written.
        ids += await loop.in_thread(stories.enqueue_many, 30)
        newest = (await loop.in_thread(Event.objects.latest, "id")).pk
        while loop.hub.position < newest:
            await asyncio.sleep(0)
        notice, *rest = await reader.several(11)
        await reader.close()
        return ids, sent, notice, rest, reader

    ids, _, notice, rest, reader = on_loop(story)

    assert notice.event == "system.events_dropped"
    assert notice.data["channel"] == "all"
    assert notice.data["dropped_count"] == 20
    assert notice.data["newest_dropped_id"] == notice.id < rest[0].id
    assert [one.data["job_id"] for one in rest] == [str(one) for one in ids[-10:]]
    assert "events-dropped 20" in reader.comments
    dropped = Event.objects.filter(
        id__gte=events.parse_cursor(notice.data["oldest_dropped_id"]).id,
        id__lte=events.parse_cursor(notice.data["newest_dropped_id"]).id,
    )
    assert list(dropped.order_by("id").values_list("subject", flat=True)) == [
        str(one) for one in ids[1:21]
    ]


def test_a_client_that_comes_back_is_fed_as_slowly_as_it_reads_and_loses_nothing(settings):
    settings.OJS = settings.OJS | {"REALTIME_BUFFER_SIZE": 10}

    async def story(loop):
        await loop.in_thread(stories.enqueue)
        reader = await listen(loop, "all")
        await reader.close()
        ids = await loop.in_thread(stories.enqueue_many, 100)
        again = await listen(loop, "all", last_event_id=reader.last_id)
        sent = await again.several(100)
        await again.close()
        return ids, sent

    ids, sent = on_loop(story)

    assert [one.data["job_id"] for one in sent] == [str(one) for one in ids]


def test_no_more_events_are_granted_in_a_second_than_the_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    pace = connection.Pace(100)

    assert pace.grant(1000) == 100
    assert pace.grant(1000) == 0
    now[0] += 0.25
    assert pace.grant(1000) == 25
    now[0] += 60
    assert pace.grant(1000) == 100


def test_events_above_the_rate_are_sent_later(settings):
    settings.OJS = {"REALTIME_RATE_LIMIT_PER_SECOND": 50}

    async def story(loop):
        reader = await listen(loop, "all")
        ids = await loop.in_thread(stories.enqueue_many, 80)
        sent = await reader.several(80)
        await reader.close()
        return ids, sent

    ids, sent = on_loop(story)

    assert [one.data["job_id"] for one in sent] == [str(one) for one in ids]


# §2.4: silence


def test_silence_is_broken_by_heartbeats_which_carry_the_position(monkeypatch):
    monkeypatch.setattr(sse, "HEARTBEAT", 0.05)

    async def story(loop):
        await loop.in_thread(stories.enqueue, "quiet")
        reader = await listen(loop, "queue:quiet")
        began = reader.last_id
        await loop.in_thread(stories.enqueue, "busy")
        while reader.last_id == began:
            reader.take(await anext(reader._parts))
        await reader.close()
        return reader

    assert "heartbeat" in on_loop(story).comments


# §5.1: the end of the server


def test_the_end_of_the_server_is_announced_and_ends_the_streams():
    async def story(loop):
        await loop.in_thread(stories.enqueue)
        readers = [await listen(loop, name) for name in ("all", "queue:default")]
        await loop.in_thread(stories.enqueue)
        for reader in readers:
            await reader.several(1)
        loop.ending.set()
        late = await listen(loop, "all")
        return [await reader.rest() for reader in (*readers, late)]

    for (goodbye,) in on_loop(story):
        assert goodbye.event == "server.shutdown"
        assert type(goodbye.data["grace_period_ms"]) is int
        assert events.parse_cursor(goodbye.id) is not None


def test_what_waits_at_the_end_is_not_lost_to_a_client_that_comes_back(settings):
    settings.OJS = {"REALTIME_RATE_LIMIT_PER_SECOND": 10}

    async def story(loop):
        reader = await listen(loop, "all")
        ids = await loop.in_thread(stories.enqueue_many, 30)
        sent = await reader.several(10)
        loop.ending.set()
        *more, goodbye = await reader.rest()
        return ids, [*sent, *more], goodbye

    async def again(loop):
        reader = await listen(loop, "all", last_event_id=goodbye.id)
        return await reader.several(len(ids) - len(sent))

    ids, sent, goodbye = on_loop(story)
    assert goodbye.event == "server.shutdown"

    sent += on_loop(again)

    assert [one.data["job_id"] for one in sent] == [str(one) for one in ids]


# §5.2, §6: permissions


def test_a_key_of_a_project_sees_the_events_of_its_jobs_and_no_others():
    ours = Caller("ours", ANYBODY.scopes, project="ours")

    async def story(loop):
        await loop.in_thread(stories.enqueue)
        readers = [
            await listen(loop, "all", caller=ours),
            await listen(loop, "queue:default", caller=ours),
        ]
        before = readers[0].last_id
        await loop.in_thread(lambda: stories.enqueue(project="theirs"))
        await loop.in_thread(lambda: engine.pause("other"))
        await loop.in_thread(stories.enqueue)
        mine = await loop.in_thread(lambda: stories.enqueue(project="ours"))
        # The same applies to a reconnecting client.
        readers.append(await listen(loop, "all", caller=ours, last_event_id=before))
        sent = [await reader.several(1) for reader in readers]
        for reader in readers:
            await reader.close()
        everything = await listen(loop, "all", last_event_id=before)
        seen = await everything.several(4)
        await everything.close()
        return mine, sent, seen

    mine, sent, seen = on_loop(story)

    assert [one.data["job_id"] for (one,) in sent] == [str(mine)] * 3
    assert len({one.data.get("job_id") for one in seen}) == 4


def test_a_key_of_a_project_reads_its_workers_ids_as_they_call_themselves():
    """Even if the worker has a different stored id, which keys without a project get."""
    ours = Caller("ours", ANYBODY.scopes, project="ours")

    async def story(loop):
        await loop.in_thread(lambda: stories.enqueue(project="ours"))
        readers = [
            await listen(loop, "all", ["job.started"], caller=ours),
            await listen(loop, "all", ["job.started"]),
        ]
        await loop.in_thread(
            lambda: protocol.fetch(["default"], worker_id="ours@/w", count=1, project="ours")
        )
        sent = [await reader.several(1) for reader in readers]
        for reader in readers:
            await reader.close()
        return [one.data["worker_id"] for (one,) in sent]

    assert on_loop(story) == ["w", "ours@/w"]


def test_another_projects_job_does_not_exist():
    job_id = stories.enqueue(project="theirs")

    with pytest.raises(JobNotFound):
        on_loop(
            lambda loop: listen(
                loop, f"job:{job_id}", caller=Caller("ours", ANYBODY.scopes, project="ours")
            )
        )


@pytest.fixture
def key(settings):
    settings.OJS = settings.OJS | {"API_KEY_CACHE": 0}
    record, secret = make_key("reader", scopes=["produce"], project="")
    yield record, current_caller(digest(secret)), digest(secret)
    forget_keys()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"revoked_at": "now"}, "unauthenticated"),
        ({"scopes": ["work"]}, "permission_denied"),
        ({"project": "other"}, "permission_denied"),
    ],
)
def test_a_stream_ends_when_its_key_does_not_open_it_any_more(key, change, code):
    record, caller, fingerprint = key
    change = {name: clock.now() if value == "now" else value for name, value in change.items()}

    async def story(loop):
        reader = await listen(loop, "all", caller=caller, key=fingerprint)
        await loop.in_thread(lambda: ApiKey.objects.filter(pk=record.pk).update(**change))
        return await reader.rest()

    (sent,) = on_loop(story)

    assert (sent.event, sent.data["code"]) == ("system.error", code)


def test_a_client_may_keep_so_many_connections_and_gets_them_back(settings):
    settings.OJS = settings.OJS | {"REALTIME_CONNECTIONS": 2}

    async def story(loop):
        readers = [await listen(loop, "all") for _ in range(2)]
        with pytest.raises(TooManyConnections):
            await listen(loop, "all")
        # Another client is counted separately.
        readers.append(await listen(loop, "all", address="192.0.2.1"))
        await readers[0].close()
        readers[0] = await listen(loop, "all")
        for reader in readers:
            await reader.close()

    on_loop(story)


def test_a_stream_that_is_never_read_gives_its_place_back(settings):
    settings.OJS = settings.OJS | {"REALTIME_CONNECTIONS": 1}

    async def story(loop):
        for _ in range(3):
            await loop.in_thread(
                lambda: sse.EventStream(
                    ANYBODY,
                    sse.Channel("all"),
                    sse.Filter(),
                    key="",
                    address="127.0.0.1",
                    command=None,
                )
            )
            # The future of a thread pool is part of a reference cycle that contains the stream.
            gc.collect()

    on_loop(story)


# One reader for all


def test_many_subscribers_cost_one_read_and_each_event_is_written_once(settings, monkeypatch):
    settings.OJS = settings.OJS | {"REALTIME_CONNECTIONS": 1000}
    made = []
    document = hub.Message._document
    monkeypatch.setattr(
        hub.Message, "_document", lambda *given: made.append(given) or document(*given)
    )

    async def story(loop):
        await loop.in_thread(stories.enqueue)
        readers = [await listen(loop, "all") for _ in range(200)]
        made.clear()
        ids = await loop.in_thread(stories.enqueue_many, 5)
        sent = [await reader.several(5) for reader in readers]
        for reader in readers:
            await reader.close()
        return ids, sent, loop.hub

    ids, sent, after = on_loop(story)

    for found in sent:
        assert [one.data["job_id"] for one in found] == [str(one) for one in ids]
    assert len(made) == 5
    # Nothing is left of them.
    assert not after._connections and not after._live and after._reader is None


def test_the_record_is_not_read_without_a_listener():
    async def story(loop):
        reader = await listen(loop, "all")
        await loop.in_thread(stories.enqueue)
        await reader.several(1)
        await reader.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(tasks) if tasks else None

    on_loop(story)


def test_the_public_command_line_finds_the_name_of_an_event_in_its_data():
    async def story(loop):
        reader = await listen(loop, "all", names_events=True)
        await loop.in_thread(stories.enqueue)
        sent = await reader.several(1)
        await reader.close()
        return sent

    (sent,) = on_loop(story)

    assert (sent.data["event"], sent.data["type"]) == ("job.state_changed", "email.send")
