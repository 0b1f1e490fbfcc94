"""An operator runs a fleet of real worker processes from the admin's pages."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

import jobs
from jobs.models import Job, JobError, OperatorAction
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory
from tests.processes import eventually
from tests.workers.sampler import sampling
from tests.workers.site import Shop, becomes
from workers.chores import reaper
from workers.models import FleetOperation, Worker

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WORKERS = "/admin/ojs_workers/worker/"
AUDIT = "/admin/ojs_jobs/operatoraction/"


@pytest.fixture
def shop(tmp_path, database_url):
    return Shop(tmp_path, database_url)


def registered(count, label):
    def are_there():
        return sum(label in worker.labels for worker in Worker.objects.live()) == count

    eventually(are_there, lambda: f"not {count} workers “{label}”")


def at_work(shop, *names):
    """Enqueue jobs that end on request; return them once they have begun."""
    made = [jobs.enqueue("shop.work", [name]) for name in names]
    shop.wait_for(*(f"{name}.began" for name in names))
    return made


def order(page, verb, reason):
    """Give an order to all workers that the list's filter matches."""
    page.locator(".ojs-whole").get_by_role("button", name=verb, exact=True).click()
    page.fill("[name=reason]", reason)
    page.click(f"text={verb} these workers")


def actions(page):
    """The entries of the audit, newest first."""
    page.goto(AUDIT)
    columns = ("actor", "did", "count", "chosen", "reason", "source")
    return [
        tuple(row.locator(f".field-{column}").inner_text() for column in columns)
        for row in page.locator("#result_list tbody tr").all()
    ]


def test_an_operator_quiets_a_label_and_resumes_it(browse, admin_user, shop):
    WorkerFactory(worker_id="green", labels=["green"], queues=["other"])
    with shop.worker("--labels", "blue", "--processes", "2", "--concurrency", "1"):
        registered(2, "blue")
        held = at_work(shop, "one", "two")

        page = browse()
        page.goto("/admin/")
        page.fill("#id_username", "admin")
        page.fill("#id_password", "password")
        page.click("[type=submit]")
        page.get_by_role("link", name="Workers", exact=True).click()
        page.click(".ojs-fold > summary")
        page.click("#changelist-filter >> text=blue")
        page.wait_for_url("**/?label=blue")
        assert page.locator("#result_list tbody tr").count() == 2
        order(page, "Quiet", "New disks")

        page.get_by_text("2 of 2 report “quiet”").wait_for()
        waiting = jobs.enqueue("shop.work", ["three"])
        shop.go("one", "two")
        for job in held:
            becomes(job, "completed")
        assert Job.objects.get(pk=waiting.id).state == "available"

        page.get_by_role("link", name="Back", exact=True).click()
        page.wait_for_url("**/?label=blue")
        assert page.locator("#result_list tbody .ojs-chip-quiet").count() == 2
        order(page, "Resume", "They are in")
        page.get_by_text("2 of 2 report “running”").wait_for()
        shop.wait_for("three.began")
        shop.go("three")
        becomes(waiting, "completed")

        assert actions(page) == [
            ("admin", "resumed workers", "2", "filter: label=blue", "They are in", "admin"),
            ("admin", "quieted workers", "2", "filter: label=blue", "New disks", "admin"),
        ]
    assert not JobError.objects.exists(), "nothing was lost on the way"


def drain_ten(page, shop, names):
    """Start to drain ten workers that hold jobs, with a floor that stops it after four."""
    page.goto(f"{WORKERS}?label=blue")
    page.locator(".ojs-whole").get_by_role("button", name="Drain", exact=True).click()
    for name, text in (("max_unavailable", "4"), ("floor", "6"), ("reason", "Release 42")):
        page.fill(f"[name={name}]", text)
    page.click("text=Start to drain")
    page.get_by_text("0 of 10 workers").wait_for()

    shop.go(*names)
    gone = Worker.objects.exclude(left_at=None)
    eventually(lambda: reaper.sweep(["fleet-operations"]) and gone.count() >= 4)
    page.get_by_text("never under 6").wait_for()
    assert gone.count() == 4


def test_a_fleet_of_ten_is_drained_and_its_floor_holds_at_every_moment(log_in, shop):
    blue = ("--labels", "blue", "--processes", "10", "--concurrency", "1")
    green = ("--labels", "green", "--processes", "6", "--concurrency", "1")
    names = [f"job-{number}" for number in range(10)]
    page = log_in()
    with shop.worker(*blue) as old:
        registered(10, "blue")
        held = at_work(shop, *names)
        with sampling() as sampler:
            drain_ten(page, shop, names)
            with shop.worker(*green):
                finished = FleetOperation.objects.filter(state="completed")
                eventually(lambda: reaper.sweep(["fleet-operations"]) and finished.exists())
                page.get_by_text("10 of 10 workers").wait_for()
                capacities = sampler.capacities
        assert old.wait() == 0, old.output

    assert min(capacities) == 6, capacities
    for job in held:
        becomes(job, "completed")
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    (row,) = actions(page)
    assert row == ("admin", "drained the fleet", "10", "filter: label=blue", "Release 42", "admin")


def test_a_filter_of_the_dead_letter_is_retried_and_who_did_it_is_read_in_the_audit(log_in):
    for error, count in (("smtp_down", 3), ("timeout", 2)):
        for _ in range(count):
            JobErrorFactory(job=JobFactory(dead=True), type=error)
    page = log_in(User.objects.create_superuser("ann"))
    page.goto("/admin/ojs_jobs/deadjob/")
    page.locator(".ojs-matrix tr", has_text="smtp_down").get_by_role("link").last.click()
    page.wait_for_url("**error=smtp_down**")
    page.check("#action-toggle")
    page.select_option("select[name=action]", "retry")
    page.click("button[name=index]")
    page.fill("[name=reason]", "The mail server is back")
    page.click("text=Retry these jobs")

    message = page.locator(".messagelist .success").inner_text()
    assert message == "3 jobs are available again, with fresh attempts."
    left = JobError.objects.filter(job__state="discarded").values_list("type", flat=True)
    assert list(left) == ["timeout", "timeout"]
    (row,) = actions(page)
    assert row[:3] + row[4:] == ("ann", "retried jobs", "3", "The mail server is back", "admin")
    page.click("#result_list >> css=.field-happened a")
    page.wait_for_url("**/change/")
    shown = page.locator("#content").inner_text()
    ids = OperatorAction.objects.get().selection["ids"]
    assert len(ids) == 3 and all(key in shown for key in ids)
    assert "127.0.0.1" in shown, "from where"
    assert page.locator("[name=_save]").count() == 0, "nobody writes here"
