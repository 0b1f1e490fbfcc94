"""The names of this server's own jobs: nobody else enqueues, schedules or fetches them."""

from __future__ import annotations

import pytest

import jobs
from jobs.errors import InvalidRequest
from jobs.models import Job, Pool, Queue
from jobs.spec.reserved import WEBHOOK_JOB, WEBHOOK_QUEUE
from tests.factories import JobFactory, QueueFactory
from tests.flare_client import FlareClient
from tests.ojs_client import MEDIA_TYPE, V1, refusal
from workers import protocol
from workers.bindings.agq import commands
from workers.bindings.agq.resp import Failed
from workers.bindings.rota import messages
from workers.models import Worker

pytestmark = pytest.mark.django_db

TYPE = {"type": WEBHOOK_JOB, "args": []}
QUEUE = {"type": "email.send", "args": [], "options": {"queue": WEBHOOK_QUEUE}}


@pytest.mark.parametrize("job", [TYPE, QUEUE], ids=["type", "queue"])
def test_no_producer_may_use_them(api, settings, job):
    settings.OJS = settings.OJS | {"FLARE": {"ENABLED": True}}
    field = "queue" if "options" in job else "type"
    queue = job.get("options", {}).get("queue", "default")
    cron = {"name": "mine", "expression": "@daily", **job, "queue": queue}
    workflow = {"type": "chain", "steps": [{"type": "a.b", "args": []}, job]}

    assert refusal(api.send("jobs", job))["details"]["field"] == field
    assert refusal(api.send("jobs/batch", {"jobs": [job]}))["details"]["field"].endswith(field)
    assert "this server" in refusal(api.send("cron", cron))["message"]
    assert "this server" in refusal(api.send("workflows", workflow))["message"]
    flare = FlareClient().enqueue(job_type=job["type"], queue=queue)
    assert flare.status_code == 400 and b"this server" in flare.content
    with pytest.raises(InvalidRequest, match="this server"):
        jobs.enqueue(job["type"], queue=queue)
    assert Job.objects.count() == 0


def test_no_other_queue_passes_its_dead_jobs_on_to_this_one(api):
    config = {"dead_letter_queue": WEBHOOK_QUEUE}
    reply = api.put(f"{V1}/queues/default/config", config, content_type=MEDIA_TYPE)
    assert refusal(reply)["details"]["field"] == "dead_letter_queue"
    assert not Queue.objects.filter(config__has_key="dead_letter_queue").exists()


def test_no_operator_moves_a_job_there_or_one_of_theirs_elsewhere(api):
    dead, waiting = JobFactory(dead=True), JobFactory(queue="old")
    own = JobFactory(queue=WEBHOOK_QUEUE, type=WEBHOOK_JOB)
    for name in ("old", WEBHOOK_QUEUE):
        QueueFactory(name=name)

    there = {"override": {"queue": WEBHOOK_QUEUE}}
    for path in (f"dead-letter/{dead.pk}/retry", f"admin/dead-letter/{dead.pk}/retry"):
        error = refusal(api.send(path, there))
        assert (error["details"]["field"], "this server" in error["message"]) == (
            "override.queue",
            True,
        )
    for queue, target, field in (
        ("old", WEBHOOK_QUEUE, "target_queue"),
        (WEBHOOK_QUEUE, "default", "queue"),
    ):
        body = {"strategy": "move", "target_queue": target}
        reply = api.delete(f"{V1}/queues/{queue}", body, content_type=MEDIA_TYPE)
        assert refusal(reply)["details"]["field"] == field
    assert dict(Job.objects.values_list("pk", "queue")) == {
        dead.pk: "default",
        waiting.pk: "old",
        own.pk: WEBHOOK_QUEUE,
    }
    assert not Queue.objects.filter(is_draining=True).exists()


@pytest.mark.parametrize("queues", [[WEBHOOK_QUEUE], {WEBHOOK_QUEUE: {"weight": 2}}], ids=str)
def test_no_worker_pool_has_them(api, queues):
    pool = {"queues": queues, "isolated": True}
    reply = api.put(f"{V1}/admin/pools/night", pool, content_type=MEDIA_TYPE)

    assert "this server" in refusal(reply)["message"]
    assert not Pool.objects.exists()


def test_no_worker_of_a_protocol_gets_them(api, settings):
    settings.OJS = settings.OJS | {"FLARE": {"ENABLED": True}}
    queues = ["default", WEBHOOK_QUEUE]
    body = {"queues": queues, "worker_id": "w1"}
    about = {"hostname": "a", "pid": 1, "concurrency": 1}

    assert refusal(api.send("workers/fetch", body))["details"]["field"] == "queues"
    assert refusal(api.send("workers/register", body | about))["details"]["field"] == "queues"
    weighted = {"queues": [{"name": name} for name in queues], "strategy": "weighted"}
    assert "this server" in refusal(api.send("workers/fetch", weighted))["message"]
    assert b"this server" in FlareClient().poll_reply(queues=queues).content
    with pytest.raises(Failed, match="this server"):
        commands.queue_name(f"queue:{WEBHOOK_QUEUE}".encode())
    with pytest.raises(InvalidRequest, match="this server"):
        messages.RegistrationMembers.queues.read({"queues": queues})
    with pytest.raises(InvalidRequest, match="this server"):
        protocol.fetch(queues, worker_id="w1")
    assert not any(WEBHOOK_QUEUE in each.queues for each in Worker.objects.all())
