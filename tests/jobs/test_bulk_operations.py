"""Bulk operations: a verb for all jobs of a filter, batch by batch in the background."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone

import jobs
from jobs.access.audit import of_shell
from jobs.engine import bulk, bulk_operations, bulk_selection
from jobs.errors import InvalidRequest
from jobs.models import BulkOperation, Event, Job, OperatorAction, Workflow
from jobs.spec.identifiers import first_id, uuid7
from jobs.spec.lifecycle import State
from jobs.store import pace
from tests.factories import JobErrorFactory, JobFactory, ago, ahead
from tests.operators import answer, forms, messages, operator, press, viewer
from workers.chores import reaper

pytestmark = pytest.mark.django_db

ADD = reverse("admin:ojs_jobs_bulkoperation_add")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(bulk, "BATCH", 3)


@pytest.fixture
def one_batch_each(monkeypatch):
    """A sweep ends after one batch of each operation."""
    monkeypatch.setattr(pace, "TURN", -1.0)


def dead(count, **columns):
    return JobFactory.create_batch(count, dead=True, created_at=ago(3600), **columns)


def enqueued():
    return jobs.enqueue("email.send", [1]).pk


def start(verb, **wanted):
    return bulk_operations.start(verb, wanted, actor=of_shell(), reason="Bad release")


def test_every_dead_job_of_a_type_is_retried_however_many(one_batch_each):
    dead(7, type="mail")
    other = dead(1, type="report")[0]
    operation = start("retry", type="mail")
    assert operation.total == 7

    changed = [bulk_operations.advance() for _ in range(4)]

    assert changed == [3, 3, 1, 0]
    assert Job.objects.filter(type="mail", state="available").count() == 7
    other.refresh_from_db()
    assert other.state == "discarded"
    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("completed", 7)
    assert operation.finished_at is not None
    audited = OperatorAction.objects.get(verb="retry_job")
    assert (audited.count, audited.selection) == (7, {"filter": {"type": "mail"}})
    assert Event.objects.get(type="bulk.retry.completed").data["retried"] == 7


def test_a_sweep_goes_on_while_there_is_time(monkeypatch):
    monkeypatch.setattr(pace, "TURN", float("inf"))
    dead(7)
    start("retry", queue="default")

    assert bulk_operations.advance() == 7


def test_a_stopped_operation_continues_where_it_was(one_batch_each):
    dead(5)
    operation = start("delete", state=["discarded"])
    bulk_operations.advance()

    assert bulk_operations.stop(operation.pk, actor=of_shell())
    assert not bulk_operations.stop(operation.pk, actor=of_shell())
    assert bulk_operations.advance() == 0
    assert Job.objects.count() == 2

    assert bulk_operations.go_on(operation.pk, actor=of_shell(), reason="It was right")
    assert bulk_operations.advance() == 2
    assert not Job.objects.exists()
    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("completed", 5)


def test_a_batch_that_fails_leaves_no_trace_and_is_taken_again(one_batch_each, monkeypatch):
    dead(4)
    operation = start("retry", type="email.send")
    real = bulk_operations.record
    monkeypatch.setattr(bulk_operations, "record", lambda events: 1 / 0)
    bulk_operations.advance()

    with pytest.raises(ZeroDivisionError):  # at its end
        bulk_operations.advance()
    operation.refresh_from_db()
    assert operation.done == 3
    assert Job.objects.filter(state="discarded").count() == 1

    monkeypatch.setattr(bulk_operations, "record", real)
    assert bulk_operations.advance() == 1


def test_operations_take_turns(one_batch_each):
    dead(6, type="mail")
    dead(2, type="report")
    start("retry", type="mail")
    start("retry", type="report")

    assert bulk_operations.advance() == 5


def test_jobs_enqueued_after_the_start_are_left_alone():
    early = JobFactory(created_at=ago(60))
    start("cancel", queue="default")
    late = enqueued()

    bulk_operations.advance()

    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {early.pk: "cancelled", late: "available"}


def test_active_jobs_are_not_cancelled():
    JobFactory(active=True)

    with pytest.raises(InvalidRequest, match="cannot be cancelled"):
        start("cancel", state=["active"])
    start("cancel", queue="default")
    bulk_operations.advance()

    assert Job.objects.get().state == "active"


def test_a_filter_that_would_mean_all_jobs_is_refused():
    with pytest.raises(InvalidRequest):
        start("delete")


def test_too_many_jobs_are_not_counted(monkeypatch):
    monkeypatch.setattr(bulk_operations, "COUNTED", 2)
    dead(3)

    assert bulk_operations.preview("retry", {"queue": "default"}) == (2, True)
    assert start("retry", queue="default").total is None


def test_a_deletion_looks_at_a_bounded_number_of_jobs_in_each_batch(one_batch_each, monkeypatch):
    monkeypatch.setattr(bulk_operations, "WINDOW", 4)
    others = dead(5, type="report")
    dead(2, type="mail")
    others += dead(6, type="report")
    dead(5, type="mail")
    operation = start("delete", type="mail")

    changed = []
    while operation.state == "running":
        changed.append(bulk_operations.advance())
        operation.refresh_from_db()

    assert sum(changed) == operation.done == 7
    assert 0 in changed  # it goes on where a window has none
    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk for job in others}


def test_a_cancellation_looks_at_a_bounded_number_of_jobs_too(one_batch_each, monkeypatch):
    monkeypatch.setattr(bulk_operations, "WINDOW", 4)
    dead(5)
    waiting = JobFactory.create_batch(2, created_at=ago(3000))
    waiting += JobFactory.create_batch(1, created_at=ago(3000), scheduled=True)
    operation = start("cancel", queue="default")

    assert [bulk_operations.advance() for _ in range(3)] == [0, 3, 0]

    operation.refresh_from_db()
    assert (operation.state, operation.total) == ("completed", 3)
    assert Job.objects.filter(pk__in=[job.pk for job in waiting], state="cancelled").count() == 3


@pytest.mark.parametrize(
    ("few", "counted", "changed"),
    [(1, 100, [2, 2, 3, 0]), (3, 100, [3, 3, 1, 0]), (3, 6, [2, 2, 3, 0])],
    ids=["many", "few", "few here"],
)
def test_a_retry_looks_through_the_table_where_many_are_dead_and_in_the_index_where_few_are(
    one_batch_each, monkeypatch, few, counted, changed
):
    monkeypatch.setattr(bulk_operations, "WINDOW", 4)
    monkeypatch.setattr(bulk_operations, "FEW", few)
    monkeypatch.setattr(bulk_operations, "COUNTED", counted)
    for _ in range(2):
        JobFactory.create_batch(3, completed=True, created_at=ago(3600), type="mail")
        dead(2, type="mail")
    dead(3, type="mail")
    operation = start("retry", type="mail")

    assert [bulk_operations.advance() for _ in changed] == changed

    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("completed", 7)
    assert not Job.objects.filter(state="discarded").exists()


def test_a_deletion_is_counted_among_a_bounded_number_of_jobs(monkeypatch):
    monkeypatch.setattr(bulk_operations, "COUNTED_AMONG", 2)
    dead(4)

    assert bulk_operations.preview("delete", {"queue": "default"}) == (3, True)
    assert bulk_operations.preview("retry", {"queue": "default"}) == (4, False)


def test_the_reaper_carries_it_out_and_does_the_rest_in_between(one_batch_each):
    dead(7)
    start("retry", queue="default")
    chore = next(chore for chore in reaper.CHORES if chore.name == "bulk-operations")

    assert [reaper.run(chore) for _ in range(4)] == [3, 3, 1, 0]

    assert BulkOperation.objects.get().state == "completed"


def test_an_operator_counts_then_starts_watches_and_stops(one_batch_each):
    dead(5, type="mail")
    ops = operator()
    sent = {"verb": "retry", "type": "mail", "reason": "Fixed"}

    counted = ops.post(ADD, sent)
    assert "5 jobs match now." in counted.content.decode()
    assert not BulkOperation.objects.exists()

    fingerprint = counted.context["fingerprint"]
    page = ops.post(ADD, sent | {"counted": fingerprint}, follow=True)
    operation = BulkOperation.objects.get()
    assert (operation.started_by, operation.reason) == ("ops", "Fixed")
    assert "0 of 5 jobs" in page.content.decode() and page.context["refresh"]

    bulk_operations.advance()
    page = ops.get(page.request["PATH_INFO"])
    assert "3 of 5 jobs" in page.content.decode()
    page = answer(ops, press(ops, page, "stop"), reason="Too early")
    operation.refresh_from_db()
    assert operation.state == "stopped"
    assert "1 operation: done." in messages(page)

    listed = ops.get(reverse("admin:ojs_jobs_bulkoperation_changelist")).content.decode()
    assert "3 of 5" in listed and "Type: mail" in listed


def test_a_form_that_is_sent_twice_starts_one_operation():
    dead(1, type="mail")
    ops = operator()
    sent = {"verb": "retry", "type": "mail"}
    fields = next(form.fields for form in forms(ops.get(ADD)) if "once" in form.fields)
    counted = ops.post(ADD, fields | sent)
    fields = next(form.fields for form in forms(counted) if "counted" in form.fields)

    for _ in range(2):
        done = ops.post(ADD, fields | sent, follow=True)

    operation = BulkOperation.objects.get()
    page = reverse("admin:ojs_jobs_bulkoperation_change", args=[operation.pk])
    assert done.request["PATH_INFO"] == page
    assert messages(done)[-1].endswith("the operation is started already.")
    ops.post(ADD, fields | sent | {"once": ""})
    assert BulkOperation.objects.count() == 2


def test_what_was_edited_after_the_count_is_counted_again():
    dead(2, type="mail")
    dead(1, type="report")
    ops = operator()
    counted = ops.post(ADD, {"verb": "retry", "type": "mail"}).context["fingerprint"]

    again = ops.post(ADD, {"verb": "delete", "type": "report", "counted": counted})

    assert "1 job matches now." in again.content.decode()
    assert not BulkOperation.objects.exists()


def test_a_wrong_filter_is_refused_at_its_field():
    ops = operator()

    page = ops.post(ADD, {"verb": "retry", "state": ["completed"]})
    assert "cannot be retried" in str(page.context["form"].errors["state"])

    page = ops.post(ADD, {"verb": "retry"})
    assert page.context["form"].non_field_errors() == ["Give at least one condition."]


def test_an_operator_retries_what_failed_of_a_project():
    wanted, *_ = dead(3, type="mail")
    Job.objects.filter(pk=wanted.pk).update(project="acme")
    ops = operator()
    sent = {"verb": "retry", "type": "mail", "project": "acme"}
    counted = ops.post(ADD, sent)
    assert "1 job matches now." in counted.content.decode()

    page = ops.post(ADD, sent | {"counted": counted.context["fingerprint"]}, follow=True)
    bulk_operations.advance()

    assert [each.pk for each in Job.objects.filter(state="available")] == [wanted.pk]
    assert ("Project", "acme") in page.context["chosen"]


def test_the_form_names_the_time_zone_of_its_moments():
    """The moments are read in it, and the reader may be elsewhere."""
    with timezone.override("Asia/Tokyo"):
        page = operator().get(ADD).content.decode()

    assert page.count("In the time zone Asia/Tokyo.") == 4


def test_an_operator_retries_what_failed_in_a_workflow():
    (job, *_) = dead(2)
    pk = uuid7()
    workflow = Workflow.objects.create(pk=pk, root_id=pk, type="group", created_at=ago(7200))
    Job.objects.filter(pk=job.pk).update(workflow=workflow)
    ops = operator()
    sent = {"verb": "retry", "workflow": str(workflow.pk)}
    counted = ops.post(ADD, sent)
    assert "1 job matches now." in counted.content.decode()

    ops.post(ADD, sent | {"counted": counted.context["fingerprint"]})
    bulk_operations.advance()

    assert [each.pk for each in Job.objects.filter(state="available")] == [job.pk]


@pytest.mark.parametrize("clock", [pytest.param(ago, id="slow"), pytest.param(ahead, id="fast")])
def test_the_jobs_of_a_workflow_are_found_whatever_the_clock_of_the_server_that_made_them(clock):
    pk = uuid7()
    workflow = Workflow.objects.create(pk=pk, root_id=pk, type="group", created_at=ago(0))
    inside = [JobFactory(id=first_id(clock(seconds)), workflow=workflow) for seconds in (90, 7200)]
    JobFactory()

    found = bulk_selection.filtered({"workflow": str(pk)}, frozenset({State.AVAILABLE}))

    assert set(found) == set(inside)


def test_a_workflow_without_jobs_matches_none():
    pk = uuid7()
    Workflow.objects.create(pk=pk, root_id=pk, type="group", created_at=ago(0))
    JobFactory()

    found = bulk_selection.filtered({"workflow": str(pk)}, frozenset({State.AVAILABLE}))

    assert not found.exists()


def test_what_failed_with_an_error_since_a_moment_is_retried_from_the_form_and_nothing_else():
    tonight = ago(3600)
    wanted = dead(4, finished_at=ago(1800))
    earlier, other, late = dead(3, finished_at=ago(1800))
    Job.objects.filter(pk=earlier.pk).update(finished_at=ago(7200))
    Job.objects.filter(pk=late.pk).update(finished_at=ago(60))
    for job in (*wanted, earlier, late):
        JobErrorFactory(job=job, type="Timeout")
    JobErrorFactory(job=other, type="Timeout")
    JobErrorFactory(job=other, type="ValueError")
    client = operator()
    form = {
        "verb": "retry",
        "error_type": "Timeout",
        "finished_after": f"{tonight:%Y-%m-%dT%H:%M:%S}",
        "finished_before": f"{ago(600):%Y-%m-%dT%H:%M:%S}",
    }

    with timezone.override("UTC"):
        page = client.post(ADD, form)
        assert page.context["found"] == (4, False)
        client.post(ADD, form | {"counted": page.context["fingerprint"]})
    while bulk_operations.advance():
        pass

    assert set(Job.objects.filter(state="available")) == set(wanted)
    operation = BulkOperation.objects.get()
    assert (operation.done, operation.filter["error_type"]) == (4, "Timeout")


def test_a_viewer_starts_nothing():
    assert viewer().post(ADD, {"verb": "retry", "type": "mail"}).status_code == 403


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00", "9999-12-31T23:00:00"])
def test_a_moment_that_is_none_in_utc_is_refused_at_its_field(moment):
    east = moment.startswith("0001")
    form = {"verb": "delete", "queue": "mail", "enqueued_before": moment}

    with timezone.override("Asia/Tokyo" if east else "America/Denver"):
        page = operator().post(ADD, form)

    assert page.context["form"].errors["enqueued_before"] == ["Enter a valid date/time."]
