"""A user's site passes `mypy --strict`: no `Any` comes from us, and mistakes are reported.

Checked without django-stubs, as in many sites, so that no type of the package depends on them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.once import once_is_enough
from tests.processes import PATIENCE, ROOT

pytestmark = [once_is_enough, pytest.mark.slow]

SITE = """
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from typing_extensions import assert_type

import jobs
from jobs import errors, history, schemas, testing
from jobs.backends import JobFailed
from jobs.crontab import register
from jobs.middleware import enqueue_chain, execution_chain, job_context
from jobs.opentelemetry import ContinuedSpan, EnqueueSpan, ProcessSpan
from jobs.sentry import SentryEnqueue, SentryProcess
from jobs.task_options import task_options
from workers.json_log import JSONFormatter
from workers.runtime import Discard, JobContext, Retry, Snooze, handler
from workers.runtime.client import LocalClient
from workers.runtime.options import Options, new_worker_id
from workers.runtime.process import WorkerProcess


class Throttled(Exception): ...


@jobs.cron("0 9 * * MON-FRI", timezone="Europe/Berlin", queue="mail", args=["ann", 1])
@handler(
    "email.send",
    queue="mail",
    retry=jobs.Retry(max_attempts=8, backoff="exponential", jitter=True),
    retry_on=(Throttled,),
    discard_on=(KeyError,),
)
def send(context: JobContext, to: str, count: int, template: str = "plain") -> str:
    if context.attempt > 3:
        raise Retry(timedelta(seconds=5))
    if context.cancelled:
        raise Snooze(60)
    context.progress(0.5, "half")
    assert_type(context.parent_results, "list[jobs.JSON]")
    return to * count


@handler("email.later")
async def later(context: JobContext, to: str) -> None:
    if not await context.aheartbeat():
        raise Discard("lost", dead_letter=True)
    await context.acheckpoint({"to": to})
    assert_type(context.last_checkpoint, "jobs.JSON")


@handler("email.once", atomic_ack=True, timeout=timedelta(minutes=1), versions=">=1.0 <2.0")
def once(context: JobContext) -> int:
    assert_type(context.id, UUID)
    assert_type(context.args, "list[jobs.JSON]")
    assert_type(context.meta, "dict[str, jobs.JSON]")
    assert_type(context.is_last_attempt, bool)
    assert_type(context.wait(0.5), bool)
    context.checkpoint([1, 2])
    context.log("%d of %d", context.attempt, context.max_attempts, worker=context.worker_id)
    return 3


@task_options(concurrency=2, timeout=30, retry={"max_attempts": 5}, tags=["bill"], priority=-1)
def charge(order: int, *, how: str = "") -> str:
    return how * order


OPTIONS: jobs.JobOptions = {"queue": "mail", "pending": True, "unique": {"keys": ["type"]}}
VALUE: jobs.JSON = {"a": [1, 2.5, None, True]}
CHAINS = [EnqueueSpan(), ProcessSpan(), ContinuedSpan(), SentryEnqueue(), SentryProcess()]


def drop(job: dict[str, jobs.JSON], next: Callable[[dict[str, jobs.JSON]], object]) -> object:
    return next(job) if job["type"] != "spam" else None


def connect() -> None:
    enqueue_chain.add(drop)
    execution_chain.prepend("jobs.middleware.LogExecution")
    with job_context(tenant_id="acme"):
        assert_type(charge(1, how="card"), str)
    assert_type(register().made, list[str])
    logging.StreamHandler().setFormatter(JSONFormatter())


def embed() -> int:
    process = WorkerProcess(LocalClient(new_worker_id()), Options(queues=["mail"], concurrency=2))
    process.state.terminate("enough")
    return process.run()


def refusals(job_id: UUID) -> str:
    try:
        assert_type(jobs.get(job_id).existing, jobs.JobHandle | None)
        jobs.cancel(job_id, reason="no")
        flow = jobs.get_workflow(job_id)
        assert_type(flow.refresh().cancel(), jobs.WorkflowHandle)
    except jobs.WaitsForever as problem:
        return str(problem)
    except (errors.OJSError, JobFailed) as problem:
        return str(problem)
    return ""


def test_sign_up() -> None:
    with testing.fake() as session:
        once.enqueue()
        testing.assert_enqueued("email.once", args=[], queue="mail", count=1)
        testing.refute_enqueued("sms.send", meta={"a": 1})
        testing.fail_next("email.once", ConnectionError("no route"))
        testing.freeze_time("2026-02-13T10:00:00Z")
        assert_type(testing.run_jobs(max_jobs=1, with_scheduled=True), int)
        testing.advance_time(hours=24)
        testing.assert_failed("email.once")
        assert_type(session.jobs[0].result, "jobs.JSON")
        assert_type(testing.all_enqueued("email.once")[0].args, "list[jobs.JSON]")
        found = testing.get_job(session.jobs[0].id)
        assert found is not None and found.state == "retryable"
        testing.assert_job_state(found.id, "retryable")
    with testing.inline():
        jobs.group(once.job(), once.job(), name="both").enqueue()
        testing.assert_workflow_created("group", name="both", step_count=2)
        testing.assert_performed("email.once", count=2)
        testing.assert_completed("email.once")
        testing.refute_performed("email.send")
        testing.fail_all("email.once", ValueError())
        testing.clear_all()


def enqueue() -> UUID | None:
    handle = jobs.enqueue("report.build", [2026, {"a": [1.5]}], queue="slow", priority=3)
    assert_type(handle, jobs.JobHandle | None)
    if handle is None:
        return None
    assert_type(handle.id, UUID)
    assert_type(handle.pk, UUID)
    assert_type(handle.attempt, int)
    assert_type(handle.args, "list[jobs.JSON]")
    assert_type(handle.result, "jobs.JSON")
    assert_type(handle.progress, float | None)
    assert_type(handle.errors, list[jobs.AttemptError])
    assert_type(handle.errors[0].backtrace, list[str] | None)
    assert_type(handle.refresh().cancel(reason="no").retry().run_now(), jobs.JobHandle)
    assert_type(jobs.wait(handle.id, timeout=timedelta(seconds=3)), jobs.JobHandle)
    assert_type(jobs.find(type="a", queue="b", tag="c", state="active"), list[jobs.JobHandle])
    many = jobs.enqueue_many([{"type": "a", "args": [1]}, {"type": "b"}])
    assert_type(many[0], jobs.JobHandle | None)
    return handle.id


def call() -> None:
    assert_type(send.enqueue("ann", 3, template="gift"), jobs.JobHandle | None)
    assert_type(send.using(priority=5, scheduled_at=timedelta(hours=1)).job("ann", 3), jobs.Step)


def compose() -> jobs.WorkflowHandle:
    first = jobs.job("a", [1], queue="b", tags=["c"])
    jobs.graph(first, jobs.job("b", depends_on=[first]), send.job("ann", 1).after(first)).enqueue()
    jobs.batch(send.job("ann", 1), on_complete=jobs.job(send, ["bob", 2])).enqueue()
    flow = jobs.chain(first, jobs.group(send.job("a", 1), later.job("b")), name="x").enqueue()
    assert_type(flow.jobs(), list[jobs.JobHandle])
    assert_type(flow.results(), "list[jobs.JSON]")
    return flow.wait(timeout=3.0)


def describe() -> list[str]:
    kinds = ["string", "integer"]
    first = schemas.register("email.send", "1.0.0", {"prefixItems": [{"type": kinds}]})
    assert_type(first.schema, "dict[str, jobs.JSON]")
    assert_type(first.uri, str)
    schemas.set_mode("strict", type="email.send", queue="mail")
    assert_type(schemas.latest("email.send").version, str)
    for version in schemas.versions("email.send"):
        schemas.delete("email.send", version)
    return schemas.mistakes("email.send", ["ann", 1])


def forget(customer: str, job_id: UUID) -> int:
    assert_type(history.entries(job_id, limit=10), "list[dict[str, jobs.JSON]]")
    assert_type(history.lineage(job_id), "dict[str, jobs.JSON]")
    erased = history.erase(meta={"customer": customer})
    assert_type(erased.left, "list[UUID]")
    return erased.jobs + history.purge(job_id)


async def asynchronous() -> None:
    handle = await jobs.aenqueue("a", [1], queue="b", retry={"max_attempts": 3})
    assert handle is not None
    assert_type(handle, jobs.JobHandle)
    assert_type(await jobs.wait_async(handle.id, timeout=1), jobs.JobHandle)
    assert_type(await (await jobs.aget(handle.id)).arefresh(), jobs.JobHandle)
    assert_type(await later.aenqueue("ann"), jobs.JobHandle | None)
    assert_type(await jobs.chain(later.job("ann")).aenqueue(), jobs.WorkflowHandle)
    assert_type(await jobs.afind(tag="a", limit=3), list[jobs.JobHandle])
    assert_type(await jobs.aenqueue_many([{"type": "a"}]), Sequence[jobs.JobHandle | None])
    assert_type(await jobs.aget_workflow(handle.id), jobs.WorkflowHandle)
    assert_type(await testing.arun_jobs("mail", max_jobs=3), int)
    await (await (await handle.acancel()).aretry()).arun_now()
    await jobs.acancel(handle.id, reason="no")
"""

MISTAKES = {
    "jobs.enqeue('a')": "attr-defined",
    "jobs.enqueue('a', quue='b')": "call-arg",
    "jobs.enqueue('a', priority='high')": "arg-type",
    "jobs.enqueue('a', retry=jobs.Retry(max_atempts=3))": "call-arg",
    "jobs.enqueue('a', retry=jobs.Retry(backoff='often'))": "arg-type",
    "jobs.job('a', quue='b')": "call-arg",
    "jobs.find(tags='a')": "call-arg",
    "jobs.get('a').reslt": "attr-defined",
    "jobs.get('a').state == 'finished'": "comparison-overlap",
    "send.enqueue('ann')": "call-arg",
    "send.enqueue('ann', 'three')": "arg-type",
    "send.job('ann', 3, tempalte='x')": "call-arg",
    "send.using(quue='x')": "call-arg",
    "jobs.chain('a')": "arg-type",
    "jobs.cron('@daily', quue='x')": "call-arg",
    "testing.assert_enqueued('a', quue='x')": "call-arg",
    "testing.all_enqueued()[0].reslt": "attr-defined",
    "testing.Session().jobs[0].reslt": "attr-defined",
    "task_options(concurency=2)": "call-arg",
    "once.enqueue(1)": "call-arg",
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of the site, and of a copy with a mistake in each of its last lines."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "mypy.ini").write_text("[mypy]\nstrict = True\ndisallow_any_expr = True\n")
    (folder / "site_of_user.py").write_text(SITE)
    lines = "".join(f"    {line}\n" for line in MISTAKES)
    (folder / "mistaken.py").write_text(f"{SITE}\n\nasync def mistakes() -> None:\n{lines}")
    # Our packages are found like installed ones: mypy reports nothing inside them.
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-incremental"]
    done = subprocess.run(
        [*command, "site_of_user.py", "mistaken.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
    )
    assert done.returncode == 1, done.stderr or done.stdout
    return done.stdout.splitlines()


def test_a_site_passes_the_strictest_checks(checked):
    lines = [line for line in checked if not line.startswith("mistaken.py:")]
    # Python's own type of an async function contains `Any`: also the sign that it was looked at.
    ours = [line for line in lines if "Coroutine[Any, Any, None]" not in line]
    assert [line for line in ours if ": error:" in line] == []
    assert len(ours) < len(lines)


def test_mistakes_are_seen(checked):
    begin = len(SITE.splitlines()) + 4
    said = re.findall(r"^mistaken\.py:(\d+): error: .*\[([\w-]+)\]$", "\n".join(checked), re.M)
    found = {int(line): code for line, code in said if code not in ("misc", "no-any-expr")}

    expected = {begin + place: code for place, code in enumerate(MISTAKES.values())}
    assert found == expected


def test_pyright_is_as_strict_and_agrees(tmp_path):
    (tmp_path / "site_of_user.py").write_text(SITE)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", "."]

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
    )

    assert done.stdout.startswith("0 errors"), done.stdout + done.stderr


def test_the_types_travel_with_the_packages():
    assert (ROOT / "jobs" / "py.typed").exists() and (ROOT / "workers" / "py.typed").exists()
