"""A user's site passes `mypy --strict`: no `Any` comes from us, and mistakes are reported.

Checked without django-stubs, as in many sites, so that nothing of ours is typed by Django's models.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE, ROOT

SITE = """
from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from typing_extensions import assert_type

import jobs
from workers.runtime import JobContext, Retry, Snooze, handler


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
async def later(context: JobContext, to: str) -> None: ...


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
    assert_type(handle.refresh().cancel(reason="no").retry(), jobs.JobHandle)
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


async def asynchronous() -> None:
    handle = await jobs.aenqueue("a", [1], queue="b", retry={"max_attempts": 3})
    assert handle is not None
    assert_type(handle, jobs.JobHandle)
    assert_type(await jobs.wait_async(handle.id, timeout=1), jobs.JobHandle)
    assert_type(await (await jobs.aget(handle.id)).arefresh(), jobs.JobHandle)
    assert_type(await later.aenqueue("ann"), jobs.JobHandle | None)
    assert_type(await jobs.chain(later.job("ann")).aenqueue(), jobs.WorkflowHandle)
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
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """mypy's output for the site, and for the site with a mistake in each of its last lines."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "mypy.ini").write_text("[mypy]\nstrict = True\ndisallow_any_expr = True\n")
    (folder / "site_of_user.py").write_text(SITE)
    lines = "".join(f"    {line}\n" for line in MISTAKES)
    (folder / "mistaken.py").write_text(f"{SITE}\n\nasync def mistakes() -> None:\n{lines}")
    return tuple(mypy(folder, name) for name in ("site_of_user.py", "mistaken.py"))  # type: ignore[return-value]


def mypy(folder: Path, name: str) -> str:
    # Our packages are found like installed ones: mypy reports nothing inside them.
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-incremental", name]
    surroundings = {**os.environ, "MYPYPATH": ""}
    done = subprocess.run(
        command, cwd=folder, env=surroundings, capture_output=True, text=True, timeout=10 * PATIENCE
    )
    assert done.returncode in (0, 1), done.stderr or done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_site_passes_the_strictest_checks(checked):
    # Python's own type of an async function contains `Any`.
    lines = [line for line in checked[0].splitlines() if "Coroutine[Any, Any, None]" not in line]
    assert [line for line in lines if ": error:" in line] == []


@pytest.mark.slow
def test_mistakes_are_seen(checked):
    begin = len(SITE.splitlines()) + 4
    said = re.findall(r"^mistaken\.py:(\d+): error: .*\[([\w-]+)\]$", checked[1], re.M)
    found = {int(line): code for line, code in said if code not in ("misc", "no-any-expr")}

    expected = {begin + place: code for place, code in enumerate(MISTAKES.values())}
    assert found == expected


def test_the_types_travel_with_the_packages():
    assert (ROOT / "jobs" / "py.typed").exists() and (ROOT / "workers" / "py.typed").exists()
