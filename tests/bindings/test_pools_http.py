"""Worker pools over HTTP: limits, isolation, starvation, figures (OJS fair scheduling)."""

from __future__ import annotations

from collections import Counter

import orjson
import pytest

import jobs
from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import Event, Job, Pool, PoolPlace, Queue
from jobs.record import scheduling
from tests.factories import JobFactory, WorkerFactory, ago
from tests.ojs_client import MEDIA_TYPE, V1, OJSClient, refusal
from workers import protocol
from workers.chores import tallies

pytestmark = pytest.mark.django_db

POOLS = f"{V1}/admin/pools"
STARVATION = "starvation_prevention"


@pytest.fixture
def api():
    return OJSClient(make_key("everything")[1])


def put(api, url, body):
    return api.put(url, data=orjson.dumps(body), content_type=MEDIA_TYPE)


def pool(api, **body):
    reply = put(api, f"{POOLS}/night", {"queues": ["a", "b"], "strategy": "strict"} | body)
    assert reply.status_code in (200, 201), reply.content
    return reply.json()["pool"]


def fetch(api, **body):
    return api.send("workers/fetch", {"pool": "night", "worker_id": "w1"} | body).json()["jobs"]


def queues(found):
    return [job["queue"] for job in found]


def code(reply):
    return reply.status_code, refusal(reply)["code"]


def test_a_pool_is_made_listed_and_searched_by_its_strategy(api):
    weighted = {"high": {"weight": 70}, "low": {"weight": 30}}
    made = put(api, f"{POOLS}/night", {"strategy": "weighted", "queues": weighted})
    assert (made.status_code, made.json()["pool"]["weights"]) == (201, {"high": 70, "low": 30})
    put(api, f"{POOLS}/night", {"queues": ["low", "high"], "strategy": "strict"})
    WorkerFactory(worker_id="w1", labels=["pool:night"])
    jobs.enqueue("a.b", queue="high")
    jobs.enqueue("a.b", queue="low")

    first = api.send("workers/fetch", {"pool": "night", "worker_id": "w1"}).json()["jobs"]

    assert [job["queue"] for job in first] == ["low"]
    (pool,) = api.see("admin/pools").json()["items"]
    assert (pool["active_workers"], pool["active_jobs"]) == (1, 1)
    assert "weights" not in pool
    assert api.delete(f"{POOLS}/night").status_code == 200
    assert code(api.send("workers/fetch", {"pool": "night"})) == (404, "not_found")


def test_a_worker_says_its_pool_when_it_registers(api):
    about = {"worker_id": "w1", "hostname": "h", "pid": 1, "queues": ["a"], "concurrency": 1}
    api.send("workers/register", about | {"pool": "night", "labels": ["gpu"]})

    assert api.see("admin/workers/w1").json()["labels"] == ["gpu", "pool:night"]


@pytest.mark.parametrize(
    ("strategy", "least", "most"), [("round-robin", 60, 140), ("weighted", 120, 195)]
)
def test_every_queue_of_a_pool_gets_its_turn(strategy, least, most):
    weights = {"often": 4, "seldom": 1}

    first = [engine.pools.search_order(weights, strategy)[0] for _ in range(200)]

    assert least < first.count("often") < most


def test_the_deepest_queue_comes_first_if_the_strategy_says_so():
    JobFactory(queue="a")
    JobFactory.create_batch(3, queue="b")
    for name in ("a", "b", "c"):
        Queue.objects.get_or_create(pk=name)

    assert engine.pools.search_order(dict.fromkeys("cab", 1), "least-loaded") == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 400, "queues"),
        ({"queues": []}, 400, "queues"),
        ({"queues": ["a"], "strategy": "random"}, 400, "strategy"),
        ({"queues": ["a"], "weights": {"b": 1}}, 400, "weights.b"),
        ({"queues": ["a"], "weights": {"a": 0}}, 400, "weights.a"),
        ({"queues": ["a"], "name": "other"}, 400, "name"),
        ({"queues": ["a"], "concurrency": 0}, 400, "concurrency"),
        ({"queues": ["a"], "isolated": "yes"}, 400, "isolated"),
        ({"queues": ["a"], "starvation_prevention": {"on": True}}, 400, f"{STARVATION}.on"),
        (
            {"queues": ["a", "b"], "starvation_prevention": {"min_dispatch_ratio": 0.6}},
            400,
            f"{STARVATION}.min_dispatch_ratio",
        ),
    ],
)
def test_a_wrong_pool_is_refused(api, body, status, field):
    reply = put(api, f"{POOLS}/night", body)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (status, field)


# The limit of active jobs


def test_no_more_jobs_run_through_a_pool_than_it_may_have(api):
    assert pool(api, concurrency=3)["concurrency"] == 3
    JobFactory.create_batch(4, queue="a")
    JobFactory.create_batch(4, queue="b")

    first = fetch(api, count=2)
    rest = fetch(api, count=9, worker_id="w2")

    assert queues(first + rest) == ["a"] * 3
    assert fetch(api) == []
    assert api.see("admin/pools/night").json()["active_jobs"] == 3
    api.ack(first[0]["id"])
    api.nack(first[1]["id"])
    assert queues(fetch(api, count=9)) == ["a", "b"]
    # Each end of being full is recorded once.
    overloaded = Event.objects.filter(type="scheduling.pool_overloaded")
    assert overloaded.count() == 1
    assert fetch(api) == fetch(api) == []
    assert [event.data["waiting_jobs"] for event in overloaded] == [5, 3]


def test_a_place_is_free_again_however_its_job_ended(api):
    pool(api, concurrency=1)
    JobFactory.create_batch(2, queue="a", max_attempts=5)

    (job,) = fetch(api)
    Job.objects.filter(pk=job["id"]).update(reserved_until=ago(1))
    engine.expire()
    # Another worker has it now, outside of the pool.
    assert job["id"] in [again["id"] for again in api.fetch("a", count=2)]
    JobFactory.create_batch(2, queue="a")

    assert len(fetch(api)) == 1
    assert fetch(api) == []


def test_workers_of_every_protocol_belong_to_the_pool_in_their_labels(api):
    pool(api, concurrency=2)
    JobFactory.create_batch(9, queue="a")
    WorkerFactory(worker_id="w1", labels=["gpu", "pool:night"], concurrency=5)
    WorkerFactory(worker_id="w2", labels=["pool:night"], job_versions={"a.b": [1, None]})
    WorkerFactory(worker_id="w3")

    assert len(protocol.fetch(["a"], worker_id="w1", count=1)) == 1
    assert len(protocol.fetch(["a"], worker_id="w2", count=5)) == 1
    assert len(protocol.fetch(["a"], worker_id="w1", count=5)) == 0
    assert len(protocol.fetch(["a"], worker_id="w3", count=5)) == 5


def test_a_new_limit_counts_the_jobs_that_run_already(api):
    pool(api)
    JobFactory.create_batch(5, queue="a")
    fetch(api, count=2)

    pool(api, concurrency=3)

    assert len(fetch(api, count=9)) == 1
    pool(api)
    assert len(fetch(api, count=9)) == 2
    assert not PoolPlace.objects.exists()


def test_without_a_record_it_counts_those_of_the_workers_whose_labels_name_the_pool(api, settings):
    settings.OJS = settings.OJS | {"RECORD_EVENTS": False}
    pool(api)
    WorkerFactory(worker_id="w1", labels=["pool:night"])
    WorkerFactory(worker_id="w2", labels=["pool:day"])
    JobFactory.create_batch(6, queue="a")
    protocol.fetch(["a"], worker_id="w1", count=2)
    protocol.fetch(["a"], worker_id="w2", count=2)

    pool(api, concurrency=3)

    assert len(protocol.fetch(["a"], worker_id="w1", count=9)) == 1


def test_what_the_record_knows_of_a_job_counts_more_than_labels(api):
    pool(api)
    JobFactory.create_batch(5, queue="a")
    protocol.fetch(["a"], worker_id="w1", count=2)
    WorkerFactory(worker_id="w1", labels=["pool:night"])

    pool(api, concurrency=3)

    assert len(protocol.fetch(["a"], worker_id="w1", count=9)) == 3


@pytest.mark.parametrize(("limit", "shown"), [({}, ">2<"), ({"concurrency": 4}, "2 / 4")])
def test_the_page_and_the_api_agree_about_the_jobs_that_run(api, admin_client, limit, shown):
    pool(api, **limit)
    WorkerFactory(worker_id="w1", labels=["pool:night"])
    JobFactory.create_batch(3, queue="a")

    protocol.fetch(["a"], worker_id="w1", count=2)

    assert api.see("admin/pools/night").json()["pool"]["active_jobs"] == 2
    assert shown in admin_client.get("/admin/ojs_jobs/pool/night/change/").content.decode()


def test_the_limit_of_a_pool_and_of_its_queues_hold_together(api):
    pool(api, concurrency=3)
    put(api, f"{V1}/queues/a/config", {"concurrency": 1})
    JobFactory.create_batch(4, queue="a")
    JobFactory.create_batch(4, queue="b")

    assert queues(fetch(api, count=9)) == ["a", "b", "b"]


# Isolation


def test_only_workers_of_an_isolated_pool_get_jobs_of_its_queues(api):
    assert pool(api, isolated=True)["isolated"] is True
    put(api, f"{POOLS}/day", {"queues": ["a", "c"], "strategy": "strict"})
    WorkerFactory(worker_id="member", labels=["pool:night"])
    JobFactory.create_batch(3, queue="a")
    JobFactory.create_batch(3, queue="c")

    assert queues(api.fetch("a", "c")) == queues(fetch(api, pool="day")) == ["c"]
    assert queues(fetch(api)) == ["a"]
    assert queues(protocol_jobs("member", "a")) == ["a"]
    assert api.fetch("a") == []
    assert code(put(api, f"{POOLS}/day", {"queues": ["a"], "isolated": True})) == (409, "conflict")
    assert code(api.delete(f"{V1}/queues/b")) == (409, "conflict")

    pool(api, isolated=True, queues=["b"])
    assert queues(api.fetch("a")) == ["a"]
    api.delete(f"{POOLS}/night")
    assert not Queue.objects.exclude(isolated_by="").exists()


def protocol_jobs(worker_id, *names):
    return [{"queue": job.queue} for job in protocol.fetch(names, worker_id=worker_id)]


# Starvation


def test_every_queue_gets_its_share_whatever_the_strategy(api):
    prevention = {"enabled": True, "rotation_interval": "PT1H", "min_dispatch_ratio": 0.1}
    assert pool(api, starvation_prevention=prevention)[STARVATION] == prevention
    for name in ("a", "b"):
        jobs.enqueue_many([{"type": "a.b", "args": [], "queue": name}] * 60)

    one_by_one = Counter(queue for _ in range(20) for queue in queues(fetch(api)))
    together = Counter(queues(fetch(api, count=20)))

    assert (one_by_one, together) == ({"a": 18, "b": 2}, {"a": 18, "b": 2})
    pool(api, starvation_prevention=prevention | {"enabled": False})
    assert Counter(queues(fetch(api, count=20))) == {"a": 20}


def test_a_queue_without_work_delays_none(api):
    pool(api, starvation_prevention={"enabled": True, "min_dispatch_ratio": 0.5})
    JobFactory.create_batch(3, queue="a")

    assert queues(fetch(api, count=9)) == ["a"] * 3
    jobs.enqueue("a.b", queue="b")
    jobs.enqueue("a.b", queue="a")
    assert queues(fetch(api)) == ["b"]


def test_a_queue_that_waited_in_vain_is_recorded_when_it_is_served(api):
    pool(api, starvation_prevention={"enabled": True, "rotation_interval": 10})
    Pool.objects.update(updated_at=ago(60))
    jobs.enqueue("a.b", queue="a")
    jobs.enqueue("a.b", queue="b")
    Job.objects.filter(queue="b").update(enqueued_at=ago(30))

    assert Counter(queues(fetch(api, count=2))) == {"a": 1, "b": 1}

    (event,) = Event.objects.filter(type="scheduling.queue_starved")
    assert (event.data["queue"], event.data["available_count"]) == ("b", 1)


# Figures


def test_figures_say_what_queues_pools_and_tenants_were_given(api):
    pool(api, concurrency=4)
    for name, count in (("a", 3), ("b", 2)):
        jobs.enqueue_many([{"type": "a.b", "args": [], "queue": name}] * count)
    jobs.enqueue("a.b", queue="b", meta={"tenant_id": "acme"})
    fetch(api, count=3)
    api.fetch("b")

    figures = api.see("admin/scheduling/stats").json()

    assert figures["window"] == "PT1M"
    a, b = (found for found in figures["queues"] if found["name"] in ("a", "b"))
    assert (a["dispatch_count_1m"], a["dispatch_ratio_1m"], a["active_jobs"]) == (3, 0.75, 3)
    assert (b["dispatch_count_1m"], b["dispatch_ratio_1m"], b["waiting_jobs"]) == (1, 0.25, 2)
    assert a["avg_wait_ms"] >= 0
    (night,) = figures["pools"]
    assert (night["name"], night["dispatch_count_1m"], night["active_jobs"]) == ("night", 3, 3)
    assert (night["concurrency"], night["waiting_jobs"]) == (4, 2)
    (acme,) = figures["tenants"]
    assert (acme["tenant_id"], acme["waiting_jobs"]) == ("acme", 1)
    lines = api.get(f"{V1}/metrics").content.decode().splitlines()
    for line in (
        'ojs_scheduling_dispatch_total{pool="night",queue="a"} 3.0',
        'ojs_scheduling_dispatch_total{pool="",queue="b"} 1.0',
        'ojs_scheduling_dispatch_ratio{queue="a"} 0.75',
        'ojs_scheduling_pool_utilization{pool="night"} 0.75',
    ):
        assert line in lines


def test_names_of_pools_in_figures_are_bounded(api, monkeypatch):
    monkeypatch.setattr(scheduling, "MOST_POOLS", 2)
    jobs.enqueue_many([{"type": "a.b", "args": []}] * 4)
    for number in range(4):
        WorkerFactory(worker_id=f"w{number}", labels=[f"pool:p{number}"])
        protocol.fetch(["default"], worker_id=f"w{number}")
        tallies.count()

    assert set(scheduling.totals()) == {("default", name) for name in ("p0", "p1", "(other)")}


def test_the_page_of_a_pool_says_what_it_does(api, admin_client):
    pool(api, concurrency=4)
    jobs.enqueue("a.b", queue="a")
    fetch(api)
    tallies.count()
    url = "/admin/ojs_jobs/pool/night/change/"

    page = admin_client.get(url).content.decode()

    assert "1 / 4" in page
    assert "a: 1 jobs, 100 % of all" in page
    form = {
        "queues": '["a"]',
        "strategy": "strict",
        "weights": "{}",
        "concurrency": "7",
        "is_isolated": "on",
        "starvation_prevention": '{"enabled": true}',
    }
    assert admin_client.post(url, form).status_code == 302
    row = Pool.objects.get()
    assert (row.concurrency, row.is_isolated, row.has_rules) == (7, True, True)
    assert row.starvation_prevention["min_dispatch_ratio"] == 0.05
