"""Checkpoints over HTTP (OJS durable execution §4 to §7)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from jobs import engine
from jobs.models import Checkpoint, Job
from jobs.spec.lifecycle import TERMINAL, State
from tests.database import connection
from tests.factories import JobFactory, ago
from tests.ojs_client import MEDIA_TYPE, V1, refusal

pytestmark = pytest.mark.django_db

NOBODY = "00000000-0000-7000-8000-000000000000"


def held(**traits: Any) -> Job:
    return JobFactory(active=True, reserved_by="w", **traits)


def save(api: Any, job: Any, state: Any, **body: Any) -> Any:
    job_id = getattr(job, "pk", job)
    return api.send(f"jobs/{job_id}/checkpoint", {"state": state} | body)


def see(api: Any, job: Any) -> Any:
    return api.see(f"jobs/{getattr(job, 'pk', job)}/checkpoint")


def forget(api: Any, job: Any) -> Any:
    return api.delete(f"{V1}/jobs/{getattr(job, 'pk', job)}/checkpoint")


@pytest.mark.parametrize("state", [{"done": [1, {"more": "ü"}]}, [], "text", 1.5, False, None])
def test_a_checkpoint_is_any_json_and_comes_back_the_same(api, state):
    job = held(attempt=1)

    saved = save(api, job, state, worker_id="w", attempt=1)

    assert saved.status_code == 200
    document = see(api, job).json()
    assert (document["state"], document["sequence"]) == (state, 1)
    assert document["checkpoint"]["state"] == state
    assert document["checkpoint"]["job_id"] == str(job.pk)
    assert document["created_at"] == saved.json()["checkpoint"]["created_at"]


def test_put_saves_as_post_does(api):
    job = held()
    path = f"{V1}/jobs/{job.pk}/checkpoint"

    reply = api.put(path, data=orjson.dumps({"state": 1}), content_type=MEDIA_TYPE)

    assert reply.json()["sequence"] == 1


def test_only_the_last_one_is_kept_and_they_are_counted_on_even_after_a_deletion(api):
    job = held()
    save(api, job, 1)
    save(api, job, 2)
    assert see(api, job).json()["state"] == 2
    assert forget(api, job).json() == {"deleted": True, "job_id": str(job.pk)}
    assert forget(api, job).status_code == 200
    refusal(see(api, job))

    assert save(api, job, 3).json()["sequence"] == 3


def test_the_next_attempt_is_given_the_checkpoint(api):
    api.pushed()
    (first,) = api.fetch(worker_id="w")
    assert "checkpoint" not in first
    save(api, first["id"], {"rows": 750}, worker_id="w", attempt=1)
    api.send(
        "workers/nack",
        {"job_id": first["id"], "error": {"code": "x", "message": "m"}, "retry_in_ms": 0},
    )

    (second,) = api.fetch(worker_id="another")

    assert (second["attempt"], second["checkpoint"]) == (2, {"state": {"rows": 750}, "sequence": 1})


@pytest.mark.parametrize("prefix", ["", "ojs/v1/"])
def test_a_durable_handler_of_an_sdk_goes_on_with_what_it_saved(api, prefix):
    """The public Python and JavaScript SDKs write the prefix of the path twice."""
    job = held(attempt=1)
    path = f"{prefix}checkpoints/{job.pk}"
    saved = {
        "state": {"fetched": True},
        "step_index": 1,
        "metadata": {"_replay_log": "[]", "attempt": "1"},
    }
    assert api.see(f"{path}/resume").json() == {"has_checkpoint": False}

    assert api.send(path, saved).json()["sequence"] == 1

    found = api.see(f"{path}/resume").json()
    assert found["has_checkpoint"] is True
    assert {name: found["checkpoint"][name] for name in saved} == saved
    assert see(api, job).json()["state"] == saved
    assert api.delete(f"{V1}/{path}").json()["deleted"]
    assert api.see(f"{path}/resume").json() == {"has_checkpoint": False}


def test_a_durable_handler_reads_a_checkpoint_of_another_client(api):
    job = held()
    save(api, job, {"rows": 1})

    found = api.see(f"checkpoints/{job.pk}/resume").json()["checkpoint"]

    assert (found["state"], found["sequence"], "metadata" in found) == ({"rows": 1}, 1, False)


def test_the_rules_for_checkpoints_hold_for_durable_handlers(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BODY_SIZE": 4_000_000}
    job = held(attempt=2)
    path = f"checkpoints/{job.pk}"

    stale = api.send(path, {"state": 1, "metadata": {"attempt": "1"}})
    other = api.send(path, {"state": 1, "worker_id": "another"})
    large = api.send(path, {"state": 1, "metadata": {"_replay_log": "x" * 2**20}})
    mute = api.send(path, {"step_index": 1})
    wrong = api.send(path, {"state": 1, "metadata": "attempt"})

    statuses = [reply.status_code for reply in (stale, other, large, mute, wrong)]
    assert statuses == [409, 409, 413, 400, 400]
    assert api.see(f"checkpoints/{NOBODY}/resume").status_code == 404
    assert not Checkpoint.objects.exists()


def test_a_job_given_back_in_its_first_attempt_keeps_its_checkpoint(api):
    api.pushed()
    (first,) = api.fetch(worker_id="w")
    save(api, first["id"], 1)
    api.send("workers/nack", {"job_id": first["id"], "requeue": True})

    (again,) = api.fetch(worker_id="w")

    assert (again["attempt"], again["checkpoint"]["state"]) == (1, 1)


def test_another_worker_and_an_older_attempt_are_refused(api):
    job = held(attempt=2)

    for body in ({"worker_id": "another"}, {"worker_id": "w", "attempt": 1}):
        reply = save(api, job, 1, **body)
        assert reply.status_code == 409
        assert refusal(reply)["details"]["current_state"] == "active"
    assert not Checkpoint.objects.exists()


def test_what_an_older_attempt_saves_never_replaces_a_newer_ones(api):
    """The guard was read before the newer attempt's checkpoint was committed."""
    job = held(attempt=1)
    Checkpoint.objects.create(job_id=job.pk, state="newer", attempt=2)

    assert save(api, job, "older", worker_id="w").status_code == 409

    assert see(api, job).json()["state"] == "newer"


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_job_that_has_ended_takes_no_checkpoint(api, state):
    job = JobFactory(state=state, finished_at=ago(1))

    assert save(api, job, 1).status_code == 409


def test_a_checkpoint_outlives_the_end_and_a_retry_from_the_dead_letter_goes_on(api):
    job = held(attempt=3, max_attempts=3)
    save(api, job, {"rows": 9}, worker_id="w", attempt=3)
    api.nack(job.pk)
    assert see(api, job).json()["state"] == {"rows": 9}

    engine.retry([job.pk])
    (again,) = api.fetch(job.queue, worker_id="w")

    assert (again["attempt"], again["checkpoint"]["state"]) == (1, {"rows": 9})
    assert save(api, job, 10, worker_id="w", attempt=1).json()["sequence"] == 2


@pytest.mark.parametrize("job_id", [NOBODY, "no-uuid"])
def test_there_is_no_checkpoint_of_a_job_that_is_not_there(api, job_id):
    for reply in (save(api, job_id, 1), see(api, job_id), forget(api, job_id)):
        assert reply.status_code == 404
        refusal(reply)


def test_a_checkpoint_must_say_its_state_and_stay_below_a_megabyte(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BODY_SIZE": 4_000_000}
    job = held()

    missing = api.send(f"jobs/{job.pk}/checkpoint", {})
    assert refusal(missing)["details"]["field"] == "state"
    assert save(api, job, "x" * (2**20 - 2)).status_code == 200
    large = save(api, job, "x" * (2**20 - 1))
    assert large.status_code == 413
    assert see(api, job).json()["sequence"] == 1


def test_the_checkpoint_goes_with_its_job(settings):
    settings.OJS = {**settings.OJS, "COMPLETED_RETENTION": 60}
    job = JobFactory(state=State.COMPLETED, finished_at=ago(120))
    Checkpoint.objects.create(job_id=job.pk, state=1)

    engine.prune_jobs()

    assert not Checkpoint.objects.exists()


def test_saving_is_one_statement_and_fetching_gets_no_other(api, django_assert_num_queries):
    job = held(attempt=1)
    with django_assert_num_queries(1):
        engine.save_checkpoint(job.pk, {"rows": 1}, worker_id="w", attempt=1)
    JobFactory()
    if connection.vendor == "postgresql":
        with django_assert_num_queries(1):
            engine.claim(["default"], worker_id="w")
