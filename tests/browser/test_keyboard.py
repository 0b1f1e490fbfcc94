"""The admin by keyboard alone: everything can be reached, is seen to have the focus, and left."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs import engine
from jobs.models import Job
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, WorkerFactory
from tests.once import once_is_enough
from workers.chores import reaper
from workers.models import Worker

from .records import etl

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    once_is_enough,
]

WATCH = """
() => {
    const looks = element => [element, element.nextElementSibling, element.closest("label")]
        .filter(Boolean).map(each => {
            const {outlineStyle, outlineWidth, outlineColor, boxShadow, borderColor,
                   backgroundColor, color, textDecorationLine} = getComputedStyle(each);
            return [outlineStyle, outlineWidth, outlineColor, boxShadow, borderColor,
                    backgroundColor, color, textDecorationLine].join();
        }).join("|");
    const can = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
    const all = [...document.querySelectorAll(can)].filter(each =>
        each.tabIndex >= 0 && !each.disabled && !each.closest("dialog:not([open])")
        && each.getClientRects().length && each.checkVisibility({visibilityProperty: true}));
    const before = new Map(all.map(each => [each, looks(each)]));
    const reached = new Set();
    const wrong = [];
    const name = each => each.outerHTML.slice(0, 120);
    document.addEventListener("focusin", event => {
        const each = event.target, box = each.getBoundingClientRect();
        if (before.has(each) && !reached.has(each) && looks(each) === before.get(each)) {
            wrong.push(`is not seen to have the focus: ${name(each)}`);
        }
        if (box.bottom < 0 || box.top > innerHeight) {
            wrong.push(`has the focus outside of the window: ${name(each)}`);
        }
        reached.add(each);
    });
    window.ojsWalk = () => ({
        left: all.filter(each => each.isConnected && !reached.has(each)).map(name),
        wrong,
        count: all.length,
        over: reached.size > 1 && (document.activeElement === document.body
            || document.activeElement === all[0]),
    });
    return all.length;
}
"""


def walk(page) -> list[str]:
    """Press Tab through a whole page; return what cannot be reached or not be seen."""
    count = page.evaluate(WATCH)
    for pressed in range(count + 20):
        page.keyboard.press("Tab")
        if pressed >= count - 1 and page.evaluate("window.ojsWalk().over"):
            break
    found = page.evaluate("window.ojsWalk()")
    trapped = [] if found["over"] else ["the focus does not come round"]
    return [*trapped, *found["wrong"], *(f"is not reached: {each}" for each in found["left"])]


def tab_to(page, selector: str, key: str = "Tab") -> None:
    """Press Tab until this has the focus."""
    for _ in range(400):
        page.keyboard.press(key)
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{selector} is not reached by {key}")


def press(page, selector: str) -> None:
    tab_to(page, selector)
    page.keyboard.press("Enter")


def confirm(page) -> None:
    """Submit the question once it is there."""
    page.locator("[name=confirmed]").wait_for(state="attached")
    press(page, ".submit-row [type=submit]")
    page.locator(".messagelist .success").wait_for()


@pytest.fixture
def few():
    """A little of everything: every page has its parts, and none many rows."""
    reaper.sign_of_life("web-1:41")
    QueueFactory(name="mail")
    QueueFactory(name="halted", paused=True)
    for name in ("web-1", "web-2"):
        WorkerFactory(worker_id=name, queues=["mail"], labels=["blue"], hostname=name)
    waiting = JobFactory(queue="halted", type="email.send")
    JobFactory(queue="mail", active=True, reserved_by="web-1", type="email.digest")
    dead = JobFactory(queue="mail", dead=True)
    JobErrorFactory(job=dead, type="smtp_down", backtrace=["line 1"])
    template = {"type": "report.make", "args": [], "options": {"queue": "mail"}}
    engine.upsert_cron(engine.NewCronJob("daily", "0 9 * * *", template))
    return waiting, dead, etl("etl")


def test_every_part_of_the_pages_is_reached_and_seen_to_have_the_focus(log_in, few):
    waiting, dead, workflow = few
    page = log_in(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    wrong = []
    for name, keys in (
        ("index", []),
        ("ojs_workers_dashboard_breakdown", []),
        ("ojs_workers_worker_changelist", []),
        ("ojs_workers_worker_map", []),
        ("ojs_workers_worker_change", ["web-1"]),
        ("ojs_jobs_job_changelist", []),
        ("ojs_jobs_job_add", []),
        ("ojs_jobs_job_change", [waiting.pk]),
        ("ojs_jobs_job_copy", [dead.pk]),
        ("ojs_jobs_deadjob_changelist", []),
        ("ojs_jobs_queue_changelist", []),
        ("ojs_jobs_cronjob_changelist", []),
        ("ojs_jobs_cronjob_change", ["daily"]),
        ("ojs_jobs_workflow_change", [workflow.pk]),
        ("ojs_jobs_operatoraction_changelist", []),
    ):
        page.goto(reverse(f"admin:{name}", args=keys))
        wrong += [f"{name}: {fault}" for fault in walk(page)]

    assert wrong == [], "\n".join(wrong)


def test_an_operator_works_with_the_keyboard_alone(log_in, few):
    waiting, dead, _ = few
    page = log_in(viewport={"width": 1280, "height": 900})
    keys = page.keyboard
    page.goto(reverse("admin:index"))

    # The palette leads to a queue, the help opens and closes.
    keys.press("?")
    page.locator("#ojs-help[open]").wait_for()
    keys.press("Escape")
    page.locator("#ojs-help[open]").wait_for(state="detached")
    keys.press("g")
    keys.type("Dead letter")
    keys.press("Enter")  # faster than the server answers
    page.wait_for_url("**/deadjob/")

    # A row is ticked, an action chosen, and the question answered.
    keys.press("j")
    keys.press("x")
    tab_to(page, "select[name=action]", "Tab")
    keys.type("Retry")
    press(page, "button[name=index]")
    page.locator("[name=confirmed]").wait_for(state="attached")
    tab_to(page, "[name=reason]")
    keys.type("The server is back")
    keys.press("Enter")
    page.locator(".messagelist .success").wait_for()
    assert Job.objects.get(pk=dead.pk).state == State.AVAILABLE

    # A job is searched for, opened, and cancelled.
    page.goto(reverse("admin:ojs_jobs_job_changelist"))
    keys.press("/")
    keys.type(str(waiting.pk))
    keys.press("Enter")
    page.wait_for_url("**q=**")
    keys.press("j")
    keys.press("Enter")
    page.wait_for_url("**/change/**")
    press(page, ".object-tools button.ojs-danger")
    confirm(page)
    assert Job.objects.get(pk=waiting.pk).state == State.CANCELLED

    # A cell of the fleet map is chosen, and its worker quieted.
    page.goto(reverse("admin:ojs_workers_worker_map"))
    tab_to(page, ".ojs-cells input")
    keys.press("Space")
    page.locator("[data-ojs-chosen]", has_text="1 selected").wait_for()
    tab_to(page, "button[value=quiet]", "Shift+Tab")
    keys.press("Enter")
    confirm(page)
    assert Worker.objects.filter(directive="quiet").count() == 1

    # A job is made.
    page.goto(reverse("admin:ojs_jobs_job_add"))
    tab_to(page, "#id_type")
    keys.type("report.make")
    tab_to(page, "#id_args")
    keys.press("ControlOrMeta+a")
    keys.type('["typed"]')
    press(page, ".submit-row [type=submit]")
    page.locator(".messagelist .success").wait_for()
    assert Job.objects.get(type="report.make").args == ["typed"]
