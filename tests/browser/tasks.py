"""What operators do, each from the start page: how, and with how many clicks.

The table in docs/operators.md is made of them (`python -m tests.pictures`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from jobs.models import CronJob, Job
from jobs.spec.lifecycle import State
from tests.scenes.large import SLOWEST, Large
from workers.models import FleetOperation, Worker

MOST = 5
"""Clicks that a task may take."""


class Hand:
    """An operator's hand: counts clicks and keys that send a form, not what is typed."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.clicks = 0

    def click(self, place: Any) -> None:
        place = self.page.locator(place) if isinstance(place, str) else place
        place.locator("visible=true").first.click()
        self.clicks += 1

    def press(self, name: str) -> None:
        """Click the button of this name, and no other."""
        self.click(self.page.get_by_role("button", name=name, exact=True))

    def follow(self, name: str) -> None:
        self.click(self.page.get_by_role("link", name=name, exact=True))

    def goes_to(self, model: str, add: bool = False) -> None:
        """From the start page to the list of a model, or to its form for a new row.

        In the bar at the side; without script, in the list below the dashboard.
        """
        self.click(f".model-{model} " + (".addlink" if add else "th a"))

    def types(self, field: str, text: str) -> None:
        self.page.fill(f"[name={field}]", text)

    def searches(self, text: str) -> None:
        self.page.fill("#searchbar", text)
        self.page.press("#searchbar", "Enter")
        self.clicks += 1
        self.page.wait_for_url("**q=**")

    def reads(self, text: str) -> None:
        """Wait until the page says this."""
        self.page.locator("#container", has_text=text).wait_for()

    def is_told(self, text: str) -> None:
        """Wait for the message that says what was done."""
        self.page.locator(".messagelist .success", has_text=text).wait_for()


def why(hand: Hand, scene: Large) -> None:
    hand.goes_to("job")
    hand.searches(str(scene.waiting.pk))
    hand.click("#result_list tbody th a")
    reasons = hand.page.locator("#why").inner_text()
    assert f"“{scene.paused_queue}” is paused" in reasons, reasons
    assert "The partner's address is down" in reasons


def retry_lately(hand: Hand, scene: Large) -> None:
    hand.goes_to("deadjob")
    row = hand.page.locator(".ojs-matrix tr", has_text="smtp_down")
    hand.click(row.get_by_role("button", name=f"Retry all {scene.failed_lately}").first)
    hand.types("reason", "The mail server is back")
    hand.press("Retry these jobs")
    hand.is_told(f"{scene.failed_lately} jobs are available again")


def quiet(hand: Hand, scene: Large) -> None:
    _narrow(hand, scene.quieted_label)
    hand.press("Quiet")
    hand.press("Quiet these workers")
    hand.is_told("will be told “quiet”")
    live = Worker.objects.live()
    labelled = [worker for worker in live if scene.quieted_label in worker.labels]
    # Some had been told to terminate before.
    assert {worker.directive for worker in labelled} <= {"quiet", "terminate"}
    assert "quiet" in {worker.directive for worker in labelled}


def _narrow(hand: Hand, label: str) -> None:
    hand.goes_to("worker")
    hand.click(".ojs-fold > summary")
    hand.click(hand.page.locator("#changelist-filter").get_by_text(label, exact=True))
    hand.page.wait_for_url(f"**label={label}")


def drain(hand: Hand, scene: Large) -> None:
    _narrow(hand, scene.drained_label)
    hand.press("Drain")
    hand.types("max_unavailable", "25%")
    hand.types("floor", "default=50%")
    hand.press("Start to drain")
    hand.reads("0 of")
    operation = FleetOperation.objects.latest("pk")
    assert operation.selection == {"filter": {"label": scene.drained_label}}
    assert "default" in operation.floors


def pause(hand: Hand, scene: Large) -> None:
    row = hand.page.locator("[data-live=queues] tr", has_text=re.compile(r"^\s*webhooks"))
    hand.click(row.get_by_role("button"))
    hand.types("reason", "Their certificate has expired")
    hand.press("Pause these queues")
    hand.reads("“webhooks” has been paused by admin")


def stop(hand: Hand, scene: Large) -> None:
    hand.goes_to("job")
    hand.searches(str(scene.running.pk))
    hand.click("#result_list tbody th a")
    hand.press("Cancel")
    hand.press("Cancel these jobs")
    hand.is_told("1 job was cancelled")
    assert Job.objects.get(pk=scene.running.pk).state == State.CANCELLED


def who_terminated(hand: Hand, scene: Large) -> None:
    hand.goes_to("operatoraction")
    hand.searches(scene.terminated)
    row = hand.page.locator("#result_list tbody tr", has_text="terminated workers").inner_text()
    assert scene.terminated_by in row and "Leaks memory" in row


def enqueue(hand: Hand, scene: Large) -> None:
    hand.goes_to("job", add=True)
    hand.types("type", "report.daily")
    hand.types("args", '["by hand"]')
    hand.press("Enqueue the job")
    hand.is_told("The job was enqueued as")
    assert Job.objects.filter(type="report.daily", args=["by hand"]).count() == 1


def edit_again(hand: Hand, scene: Large) -> None:
    hand.goes_to("job")
    hand.searches(str(scene.dead.pk))
    hand.click("#result_list tbody th a")
    hand.follow("Edit a copy")
    hand.types("args", '["corrected"]')
    hand.press("Enqueue the copy")
    hand.is_told("The copy was enqueued as")
    assert Job.objects.filter(args=["corrected"]).count() == 1


def new_cron(hand: Hand, scene: Large) -> None:
    hand.goes_to("cronjob", add=True)
    for field, text in (("name", "stocktaking"), ("expression", "0 5 * * SUN")):
        hand.types(field, text)
    hand.types("type", "stock.count")
    hand.press("Save")
    hand.page.locator(".messagelist .success").wait_for()
    assert CronJob.objects.get(pk="stocktaking").next_run_at


def slowest(hand: Hand, scene: Large) -> None:
    hand.follow("By job type")
    hand.click(hand.page.get_by_role("link", name=re.compile(r"^Run p50")))
    hand.page.wait_for_url("**order=run**")
    assert hand.page.locator(".ojs-matrix tbody th").first.inner_text() == SLOWEST


def compare(hand: Hand, scene: Large) -> None:
    hand.follow("24 hours")
    hand.follow("yesterday")
    hand.page.wait_for_url("**compare=day**")
    chosen = hand.page.locator("nav[aria-labelledby=ojs-compare] [aria-current=true]")
    assert chosen.inner_text() == "yesterday"


@dataclass(frozen=True)
class Task:
    name: str
    way: str
    clicks: int
    perform: Callable[[Hand, Large], None]


TASKS = (
    Task(
        "Why does a job wait?",
        "*Jobs*, search for its id, its page: *Why is it not running?*",
        3,
        why,
    ),
    Task(
        "Retry what failed with an error in the last hour",
        "*Dead letter*, ↻ in the cell of the error and *1 hour*, confirm",
        3,
        retry_lately,
    ),
    Task(
        "Quiet the workers with a label",
        "*Workers*, *Narrow down*, the label, *Quiet*, confirm",
        5,
        quiet,
    ),
    Task(
        "Drain a label and keep a floor",
        "*Workers*, *Narrow down*, the label, *Drain*, type the floor, confirm",
        5,
        drain,
    ),
    Task("Pause a queue", "*Pause* beside the queue on the dashboard, confirm", 2, pause),
    Task("Stop a running job", "*Jobs*, search for its id, its page, *Cancel*, confirm", 5, stop),
    Task(
        "Who terminated a worker?",
        "*Operator actions*, search for the id of the worker",
        2,
        who_terminated,
    ),
    Task("Enqueue a job by hand", "*Add* beside *Jobs*, fill in the form, enqueue", 2, enqueue),
    Task(
        "Edit a job and enqueue it again",
        "*Jobs*, search for its id, its page, *Edit a copy*, enqueue",
        5,
        edit_again,
    ),
    Task("Make a cron job", "*Add* beside *Cron jobs*, fill in the form, save", 2, new_cron),
    Task("Which type is the slowest?", "*By job type*, *Run p50 / p95 / p99*", 2, slowest),
    Task("Today against yesterday", "*24 hours*, *Compare with* yesterday", 2, compare),
)


def start() -> str:
    """The address of the start page."""
    return reverse("admin:index")


def table() -> str:
    """The tasks as Markdown."""
    rows = (f"| {task.name} | {task.way} | {task.clicks} |" for task in TASKS)
    return "\n".join(("| task | from the start page | clicks |", "|---|---|---|", *rows))
