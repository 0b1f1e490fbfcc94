"""A failure is taken whatever the text of its error contains; all else in its request stays strict.

`test_every_binding` has the same for each protocol.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.models import Job, JobError
from jobs.spec.lifecycle import State
from tests.factories import JobFactory
from tests.ojs_client import refusal
from workers.bindings.agq import documents
from workers.bindings.agq.resp import Failed

pytestmark = pytest.mark.django_db

TEXT = "\0 \ud83d ü😀"
LEGIBLE = r"\x00 \ud83d ü😀"
ERROR = {
    "type": TEXT,
    "code": TEXT,
    "message": TEXT,
    "backtrace": [TEXT],
    "details": {TEXT: [TEXT, 2**60]},
}


def written(document: Any) -> bytes:
    """JSON as most clients write it: what is not ASCII is escaped, half a character too."""
    return json.dumps(document).encode()


def held() -> Job:
    return JobFactory(active=True, reserved_by="w")


def is_legible(job: Job) -> bool:
    job.refresh_from_db()
    error = job.errors.get()
    assert job.state == State.RETRYABLE
    assert (error.type, error.code, error.message) == (LEGIBLE, LEGIBLE, LEGIBLE)
    assert error.backtrace == [LEGIBLE]
    assert error.details == {LEGIBLE: [LEGIBLE, str(2**60)]}
    return True


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("path", ["workers/nack", "workers/fail", "jobs/{}/nack", "jobs/{}/fail"])
def test_a_nack_is_taken_whatever_its_error_says(api, settings, path, fast):
    settings.OJS = {**settings.OJS, "FAST_PATH": fast}
    job = held()
    body = {"job_id": str(job.pk), "error": ERROR}

    reply = api.send(path.format(job.pk), written(body))

    assert reply.status_code == 200, reply.content
    assert is_legible(job)
    assert api.job(job.pk)["error"]["message"] == LEGIBLE


@pytest.mark.parametrize("path", ["workers/nack", "workers/fetch"])
def test_so_is_each_of_a_list_and_those_that_a_fetch_carries(api, path):
    first, second = held(), held()
    nacks = [{"job_id": str(job.pk), "error": ERROR} for job in (first, second)]
    request = {"nacks": nacks, "queues": ["default"], "worker_id": "w"}

    reply = api.send(path, written(request))

    assert [one["state"] for one in reply.json()["nacks"]] == ["retryable", "retryable"]
    assert is_legible(first) and is_legible(second)


@pytest.mark.parametrize("error", [TEXT, {"code": "x", "message": TEXT}])
def test_an_error_may_be_a_text(api, error):
    job = held()

    assert (
        api.send("workers/nack", written({"job_id": str(job.pk), "error": error})).status_code
        == 200
    )

    assert job.errors.get().message == LEGIBLE


def test_bytes_that_are_no_text_are_escaped(api):
    job = held()
    body = b'{"job_id": "%s", "error": {"code": "x", "message": "a\xff\xed\xa0\xbdb"}}'

    assert api.send("workers/nack", body % str(job.pk).encode()).status_code == 200

    assert job.errors.get().message == r"a\udcff\udced\udca0\udcbdb"


def test_an_error_of_any_size_is_cut(api):
    job = held()
    error = {
        "type": "t" * 1000,
        "code": "c" * 1000,
        "message": "m" * 2**21,
        "backtrace": ["b" * 2**21] * 2,
        "details": {"short": 1, "long": ["d" * 2**20, "e"]},
    }

    reply = api.send("workers/nack", {"job_id": str(job.pk), "error": error})

    assert reply.status_code == 200
    kept = job.errors.get()
    assert (kept.type, kept.code) == ("t" * 255, "c" * 255)
    assert kept.message == "m" * 2**20
    assert kept.backtrace == ["b" * 10_000]
    assert kept.details == {"short": 1, "long": ["d" * 1000, "e"]}


def test_details_that_no_cut_makes_small_enough_are_omitted(api):
    job = held()
    error = {"code": "x", "message": "m", "details": {"numbers": [0] * 2**20}}

    assert api.send("workers/nack", {"job_id": str(job.pk), "error": error}).status_code == 200

    assert job.errors.get().details == {"omitted": "2097165 bytes of JSON"}


def test_details_nested_too_deeply_are_taken_without_their_depths(api):
    job = held()
    deep: Any = "deepest"
    for _ in range(400):
        deep = [deep]
    error = {"code": "x", "message": "m", "details": {"deep": deep}}

    assert (
        api.send("workers/nack", written({"job_id": str(job.pk), "error": error})).status_code
        == 200
    )

    assert "…" in json.dumps(job.errors.get().details, ensure_ascii=False)


@pytest.mark.parametrize("text", ["a\0b", "a\ud83db"])
def test_everything_beside_the_errors_stays_strict(api, text):
    job, done = held(), held()
    error = {"code": "x", "message": TEXT}
    requests = {
        "workers/nack": {"job_id": str(job.pk), "error": error, "worker_id": text},
        "workers/fetch": {
            "queues": ["default"],
            "nacks": [{"job_id": str(job.pk), "error": error}],
            "acks": [{"job_id": str(done.pk), "result": text}],
        },
        "workers/ack": {"job_id": str(done.pk), "result": text},
        "jobs": {"type": "email.send", "args": [text], "error": error},
    }

    for path, body in requests.items():
        assert refusal(api.send(path, written(body)))["code"] == "invalid_payload"

    assert not JobError.objects.exists()


@pytest.mark.parametrize("body", [b'{"error": "\\ud83d"', b'{"error": NaN}', b"[" * 100_000])
def test_what_is_not_json_is_refused_as_before(api, body):
    assert refusal(api.send("workers/nack", body))["code"] == "invalid_payload"


def test_only_a_failed_job_of_agq_may_say_anything():
    failed = {"status": "failed", "error": TEXT, "task_results": [{"error": TEXT}]}
    read = documents.read_update(written(failed))
    assert (read["error"], read["task_results"]) == (LEGIBLE, [{"error": LEGIBLE}])

    with pytest.raises(Failed):
        documents.read_update(written(failed | {"status": "completed"}))
