"""What jobs have stored elsewhere is deleted after them (OJS payload limits §5)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import FileSystemStorage
from django.core.management import CommandError, call_command

import jobs
from jobs import engine, history
from jobs.errors import StorageUnavailable
from jobs.http.authentication import make_key
from jobs.models import CronJob, Job, Workflow
from jobs.payloads import server
from jobs.store.database import atomic
from tests.factories import ago
from tests.ojs_client import OJSClient
from tests.operators import confirm, messages

pytestmark = pytest.mark.django_db

LARGE = "x" * 2000


@pytest.fixture
def bucket(settings, tmp_path) -> Path:
    """A storage for arguments of more than 1000 bytes."""
    settings.STORAGES = settings.STORAGES | {
        "payloads": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path)},
        }
    }
    settings.OJS = settings.OJS | {
        "CODECS": [],
        "ENQUEUE_MIDDLEWARE": ["jobs.codecs.Encode"],
        "EXECUTION_MIDDLEWARE": ["jobs.codecs.Decode"],
        "PAYLOAD_STORAGE": "payloads",
        "PAYLOAD_URI": "s3://bucket",
        "PAYLOAD_EXTERNAL_FROM": 1000,
    }
    return tmp_path


def finished(state: str = "completed") -> Job:
    """A job with a large argument that ended long ago."""
    handle = jobs.enqueue("a.b", [LARGE])
    Job.objects.filter(pk=handle.id).update(
        state=state, finished_at=ago(10**8), dead_letter=state == "discarded"
    )
    return Job.objects.get(pk=handle.id)


def file_of(job: Job) -> str:
    (reference,) = job.args
    return str(reference["__ojs_ref"]).removeprefix("s3://bucket/")


def files(bucket: Path) -> set[str]:
    return {path.name for path in bucket.iterdir() if path.is_file()}


def lists(bucket: Path) -> list[Path]:
    folder = bucket / "released"
    return list(folder.iterdir()) if folder.exists() else []


def let_time_pass(bucket: Path) -> None:
    """Make all lists older than any transaction: their names begin with the time."""
    for path in lists(bucket):
        path.rename(path.with_name(f"0190{path.name[4:]}"))


def by_retention(job: Job) -> None:
    assert engine.prune_jobs() == 1


def by_erasure(job: Job) -> None:
    assert history.erase(ids=[job.pk]).jobs == 1


def by_an_operator(job: Job) -> None:
    assert engine.bulk.delete(Job.objects.filter(pk=job.pk)) == [job.pk]


def by_a_purge(job: Job) -> None:
    chosen = Job.objects.filter(pk=job.pk)
    assert engine.bulk.purge(chosen, [job.state]) == [job.pk]


def from_the_dead_letter(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state="discarded", dead_letter=True)
    assert engine.delete_dead([job.pk]) == 1


WAYS = [by_retention, by_erasure, by_an_operator, by_a_purge, from_the_dead_letter]


@pytest.mark.parametrize("delete", WAYS)
def test_however_a_job_is_deleted_its_arguments_are_too_and_no_others(bucket, delete):
    other = jobs.enqueue("a.b", [LARGE])
    gone = finished()

    delete(gone)

    assert file_of(gone) in files(bucket), "the transaction may still be rolled back"
    assert engine.stored_arguments.collect() == 0
    let_time_pass(bucket)
    assert engine.stored_arguments.collect() == 1
    assert files(bucket) == {file_of(Job.objects.get(pk=other.id))}
    assert lists(bucket) == []


def test_an_argument_that_a_copy_of_the_job_needs_stays_until_that_is_deleted(bucket):
    job = finished()
    copy = jobs.enqueue("a.b", job.args)

    by_erasure(job)
    let_time_pass(bucket)

    assert engine.stored_arguments.collect() == 0
    assert files(bucket) == {file_of(job)}
    assert jobs.get(copy.id).args == [LARGE]
    Job.objects.filter(pk=copy.id).update(state="completed", finished_at=ago(1))
    by_erasure(Job.objects.get(pk=copy.id))
    let_time_pass(bucket)
    assert engine.stored_arguments.collect() == 1
    assert files(bucket) == set()


def test_an_argument_that_a_schedule_needs_stays(bucket):
    job = finished()
    template = {"type": "a.b", "args": job.args}
    CronJob.objects.create(
        name="nightly", expression="0 3 * * *", template=template, anchored_at=ago(1)
    )

    by_erasure(job)
    let_time_pass(bucket)

    assert engine.stored_arguments.collect() == 0
    assert files(bucket) == {file_of(job)}


def test_what_was_not_deleted_after_all_keeps_its_argument(bucket):
    job = finished()
    with pytest.raises(RuntimeError), atomic():
        by_an_operator(job)
        raise RuntimeError

    let_time_pass(bucket)

    assert engine.stored_arguments.collect() == 0
    assert files(bucket) == {file_of(job)}
    assert lists(bucket) == []


@pytest.mark.parametrize("erases", [True, False])
def test_arguments_of_steps_that_never_ran_go_with_their_workflow(bucket, erases):
    chain = jobs.chain(jobs.job("a.b", [1]), jobs.job("a.b", [LARGE])).enqueue()
    Job.objects.update(state="discarded", finished_at=ago(10**8))
    Workflow.objects.update(state="failed", finished_at=ago(10**8))
    assert len(files(bucket)) == 1

    if erases:
        history.erase(ids=[Job.objects.get().pk])
    else:
        assert engine.prune_workflows() == 1

    assert not Workflow.objects.filter(pk=chain.id).exists()
    let_time_pass(bucket)
    assert engine.stored_arguments.collect() == 1
    assert files(bucket) == set()


def test_a_storage_that_is_away_is_asked_again(bucket, monkeypatch):
    job = finished()
    by_erasure(job)
    let_time_pass(bucket)

    def fail(self: FileSystemStorage, name: str) -> None:
        raise ConnectionError("The bucket is away.")

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(FileSystemStorage, "delete", fail)
        engine.stored_arguments.collect()

    assert engine.stored_arguments.collect() == 1
    assert files(bucket) == set()


class BotoError(Exception):
    """As the storages of clouds have them."""


AWAY = [ConnectionError("away"), OSError("away"), PermissionError("away"), BotoError("away")]


@pytest.fixture(params=AWAY, ids=lambda problem: type(problem).__name__)
def break_storage(request, monkeypatch) -> Iterator[Callable[[], None]]:
    """Let the storage fail in one of the ways that storages have, for the rest of the test."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise request.param

    def begin() -> None:
        for name in ("save", "open"):
            monkeypatch.setattr(FileSystemStorage, name, fail)

    return begin


def test_jobs_are_not_deleted_over_http_while_the_storage_is_away(bucket, break_storage, caplog):
    job = finished()
    client = OJSClient(make_key("purge", scopes=["ojs:admin:purge"])[1])
    break_storage()

    reply = client.post(
        "/ojs/v1/admin/jobs/bulk/delete",
        json.dumps({"filter": {"type": "a.b", "state": "completed"}, "confirm": True}),
        content_type="application/json",
    )

    assert (reply.status_code, reply["Retry-After"]) == (503, "1")
    assert reply.json()["error"]["retryable"] is True
    assert "storage of large arguments" in reply.json()["error"]["message"]
    assert "away" not in reply.text
    assert "Error: away" in caplog.text
    assert Job.objects.filter(pk=job.pk).exists()


def test_the_codec_server_asks_to_try_again_while_the_storage_is_away(bucket, break_storage):
    payload = server.payload_of(finished().args[0], {})
    client = OJSClient(make_key("may", scopes=["ojs:admin:args"])[1])
    break_storage()

    reply = client.post(
        "/ojs/codec/decode", json.dumps({"payloads": [payload]}), content_type="application/json"
    )

    assert (reply.status_code, reply["Retry-After"]) == (503, "1")


def test_the_admin_says_that_the_storage_is_away(bucket, break_storage, admin_client):
    job = finished()
    break_storage()

    page = confirm(admin_client, "ojs_jobs_job", "erase", job, reason="asked")

    assert messages(page) == ["The storage of large arguments cannot be used at present."]
    assert Job.objects.filter(pk=job.pk).exists()


def test_the_command_says_in_a_line_that_the_storage_is_away(bucket, break_storage):
    job = finished()
    break_storage()

    with pytest.raises(CommandError, match=r"^The storage of large arguments [a-z ]+\.$"):
        call_command("jobs", "erase", str(job.pk), stdout=io.StringIO())

    assert Job.objects.filter(pk=job.pk).exists()


def test_arguments_cannot_be_stored_or_read_while_the_storage_is_away(bucket, break_storage):
    job = jobs.enqueue("a.b", [LARGE])
    break_storage()

    with pytest.raises(StorageUnavailable):
        jobs.enqueue("a.b", [LARGE])
    with pytest.raises(StorageUnavailable):
        _ = jobs.get(job.id).args


@pytest.mark.parametrize("text", ["5", "null", '{"a": 1}', "no JSON", "\xff"])
def test_a_list_that_is_none_does_not_keep_the_others_from_being_read(bucket, caplog, text):
    job = finished()
    by_erasure(job)
    (bucket / "released" / f"{job.pk}.json").write_bytes(text.encode("latin-1"))
    let_time_pass(bucket)

    assert engine.stored_arguments.collect() == 1
    assert files(bucket) == set()
    assert lists(bucket) == []
    assert "is no list" in caplog.text


def test_a_list_names_only_files_of_this_project(bucket):
    """Whoever can write to the storage cannot have other files deleted."""
    (bucket / "keep.txt").write_text("")
    (bucket / "released").mkdir()
    (bucket / "released" / f"{finished().pk}.json").write_text('["keep.txt", "../keep.txt", 7]')
    let_time_pass(bucket)

    assert engine.stored_arguments.collect() == 0
    assert "keep.txt" in files(bucket)


def test_without_a_storage_nothing_is_asked(settings, django_assert_num_queries):
    with django_assert_num_queries(0):
        engine.stored_arguments.release_jobs([])
        assert engine.stored_arguments.collect() == 0
