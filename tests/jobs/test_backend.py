"""Django Tasks backend, on `django.tasks` where Django has it, else on `django-tasks`."""

from __future__ import annotations

import subprocess
import sys
import uuid
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

import jobs
from jobs import engine, testing
from jobs.backends import (
    InvalidTask,
    JobFailed,
    TaskResultDoesNotExist,
    TaskResultStatus,
    find_task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from jobs.engine import Completion, Failure
from jobs.models import Job
from jobs.task_options import task_options
from tests.database import atomic
from tests.processes import ROOT
from tests.shop import TASKS
from workers.runtime import handlers

PATH = "tests.shop.tasks"


@pytest.fixture(autouse=True)
def shop(settings):
    """The tasks of the shop; they may be imported only with the setting."""
    settings.TASKS = TASKS
    from tests.shop import tasks

    return tasks


@pytest.fixture
def heard():
    """The signals of the framework, in order, with the status of the task."""
    signals = []

    def receiver(name):
        def receive(sender, task_result, **kwargs):
            signals.append((name, str(task_result.status)))

        return receive

    receivers = {
        signal: receiver(name)
        for signal, name in (
            (task_enqueued, "enqueued"),
            (task_started, "started"),
            (task_finished, "finished"),
        )
    }
    for signal, receive in receivers.items():
        signal.connect(receive)
    yield signals
    for signal, receive in receivers.items():
        signal.disconnect(receive)


def claimed(queue="default"):
    (job,) = engine.claim([queue], worker_id="worker-7")
    return job


@pytest.mark.django_db
def test_a_task_is_a_job_of_its_own_type(shop):
    result = shop.add.using(priority=5, queue_name="math").enqueue(1, 2)

    job = Job.objects.get()
    assert result.id == str(job.pk)
    assert result.status == TaskResultStatus.READY
    assert (job.type, job.args, job.meta) == (f"{PATH}.add", [1, 2], {})
    assert (job.queue, job.priority, job.state) == ("math", 5, "available")


@pytest.mark.django_db
def test_options_of_a_task_are_those_of_its_jobs(shop, monkeypatch):
    options = task_options(
        priority=3,
        tags=["bill"],
        unique={"keys": ["type"], "on_conflict": "ignore"},
        expires_at=timedelta(hours=1),
        rate_limit={"key": "stripe", "concurrency": 1},
        retry=jobs.Retry(max_attempts=7),
    )
    monkeypatch.delattr(shop.add.func, "ojs_options", raising=False)
    options(shop.add)
    try:
        first = shop.add.enqueue(1)
        again = shop.add.using(priority=9).enqueue(2)
    finally:
        del shop.add.func.ojs_options

    job = Job.objects.get()
    assert first.id == again.id == str(job.pk)
    assert (job.priority, job.tags, job.max_attempts) == (3, ["bill"], 7)
    assert (job.rate_key, job.expires_at > timezone.now()) == ("stripe", True)


def test_a_task_is_a_step_of_a_workflow(shop):
    with testing.inline():
        flow = jobs.chain(
            jobs.job(shop.add, [1, 2]), jobs.job(shop.send_invoice, kwargs={"order": 7})
        )
        results = flow.enqueue().results()

    assert results == [3, {"order": 7, "copy_to": ""}]


@pytest.mark.django_db
def test_a_task_belongs_to_the_transaction_it_is_enqueued_in(shop):
    with pytest.raises(ZeroDivisionError), atomic():
        shop.add.enqueue(1, 2)
        raise ZeroDivisionError

    assert not Job.objects.exists()


@pytest.mark.django_db
def test_a_deferred_task_waits(shop):
    later = timezone.now() + timedelta(hours=1)

    result = shop.add.using(run_after=later).enqueue(1)

    assert Job.objects.get().scheduled_at == later
    assert shop.add.get_result(result.id).status == TaskResultStatus.READY


@pytest.mark.django_db
def test_a_task_that_ran_has_a_result(shop, heard):
    result = shop.add.enqueue(1, right=2)

    testing.run_jobs()

    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == 3
    assert (result.args, result.kwargs) == ([1], {"right": 2})
    assert result.attempts == 1
    assert result.is_finished and result.finished_at and result.started_at
    assert heard == [
        ("enqueued", "READY"),
        ("started", "RUNNING"),
        ("finished", "SUCCESSFUL"),
    ]


@pytest.mark.django_db
def test_a_running_task_says_who_runs_it(shop):
    result = shop.add.enqueue(1)
    claimed()

    result.refresh()

    assert result.status == TaskResultStatus.RUNNING
    assert result.worker_ids == ["worker-7"]


@pytest.mark.django_db
def test_a_failing_task_is_tried_again_and_then_failed_with_all_its_errors(shop, heard):
    result = shop.decline.enqueue("stolen")

    testing.run_jobs()
    result.refresh()
    assert result.status == TaskResultStatus.READY
    testing.run_jobs(with_scheduled=True)

    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.attempts == len(result.errors) == 3
    assert result.errors[0].exception_class is shop.CardDeclined
    assert "CardDeclined: stolen" in result.errors[0].traceback
    assert "tests/shop/tasks.py" in result.errors[0].traceback
    # A monitor that follows the signals never shows a task as running that waits.
    again = [("started", "RUNNING"), ("finished", "READY")]
    assert heard[1:] == [*again, *again, ("started", "RUNNING"), ("finished", "FAILED")]


def ends_meanwhile(context, next):
    """The worker's grace period is over before the handler has returned."""
    context.cancel("shutdown")
    return next()


@pytest.mark.django_db
@pytest.mark.parametrize(("retry", "status"), [(None, "READY"), ({"max_attempts": 1}, "FAILED")])
def test_receivers_get_what_was_reported_of_a_task_that_outlived_its_worker(
    shop, settings, heard, retry, status
):
    settings.OJS = {"EXECUTION_MIDDLEWARE": [f"{__name__}.ends_meanwhile"]}
    settings.TASKS = {"default": TASKS["default"] | {"OPTIONS": {"RETRY": retry} if retry else {}}}
    shop.add.enqueue(1, 2)

    testing.run_jobs()

    assert heard[1:] == [("started", "RUNNING"), ("finished", status)]


@pytest.mark.one_database
@pytest.mark.django_db
def test_a_task_is_finished_when_no_attempt_will_follow(shop, heard):
    """However many are left: its policy or the task itself may make it final."""
    result = shop.charge.enqueue("never", "refuse")

    testing.run_jobs()

    result.refresh()
    assert result.is_finished
    assert heard[1:] == [("started", "RUNNING"), ("finished", "FAILED")]
    assert not Group.objects.exists(), "its work and its end are one transaction in tests, too"


@pytest.mark.django_db
def test_a_receiver_gets_the_result_the_errors_and_the_exception(shop):
    signals = []

    def receive(sender, task_result, **kwargs):
        signals.append((task_result, sys.exc_info()[1]))
        raise ConnectionError("of the receiver, and its own affair")

    task_finished.connect(receive)
    try:
        shop.add.enqueue(1, right=2)
        shop.charge.enqueue("gone", "refuse")
        testing.run_jobs()
    finally:
        task_finished.disconnect(receive)

    (added, none), (refused, problem) = signals
    assert (added.return_value, none) == (3, None)
    assert added.enqueued_at <= added.started_at <= added.finished_at
    assert [error.exception_class for error in refused.errors] == [ValueError]
    assert isinstance(problem, ValueError)
    assert {job.state for job in Job.objects.all()} == {"completed", "discarded"}


@pytest.mark.django_db
def test_a_task_may_have_a_retry_policy_of_its_own(shop):
    shop.charge.enqueue("x")
    shop.add.enqueue(1)

    of_its_own, default = Job.objects.order_by("id")

    assert (of_its_own.max_attempts, default.max_attempts) == (2, 3)
    assert of_its_own.retry["initial_interval"] == "PT1H"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"concurrency": "2"}, "concurrency must be at least 1"),
        ({"concurrency": 1.5}, "concurrency must be at least 1"),
        ({"timeout": "30"}, "timeout must be seconds or a timedelta"),
        ({"timeout": float("inf")}, "100 years at most"),
        ({"retry": 5}, "must be a dictionary"),
        ({"retry": {"max_atempts": 5}}, "no 'max_atempts' in a policy"),
        ({"unique": {"keyz": ["args"]}}, "no member 'keyz'"),
        ({"rate_limit": {"key": "a", "concurency": 1}}, "no 'concurency' in 'rate_limit'"),
        ({"versions": ["2.0"]}, "no range of versions"),
        ({"timeout": 0}, "timeout must be more than zero"),
        ({"retry": {"max_attempts": -1}}, "max_attempts"),
        ({"retry": {"initial_interval": -timedelta(seconds=1)}}, "must be positive"),
        ({"atomic_ack": True}, "do not span await"),
    ],
)
def test_a_task_that_asks_for_what_cannot_be_is_refused_at_once(options, problem):
    async def work():
        pass

    with pytest.raises(ImproperlyConfigured, match=problem):
        task_options(**options)(work)


@pytest.mark.django_db
def test_the_context_counts_attempts(shop):
    result = shop.which_attempt.enqueue()
    testing.fail_next(f"{PATH}.which_attempt", ConnectionError("no route"))

    testing.run_jobs(with_scheduled=True)

    result.refresh()
    assert result.return_value == 2
    assert result.errors[0].exception_class is ConnectionError


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "status"), [("discard", TaskResultStatus.FAILED), ("cancel", TaskResultStatus.FAILED)]
)
def test_a_task_that_was_given_up_has_failed(shop, state, status):
    result = shop.add.enqueue(1)
    if state == "cancel":
        engine.cancel(uuid.UUID(result.id))
    else:
        job = claimed()
        engine.fail([Failure(job.id, "worker-7", code="DISCARD", type="go.Panic", message="oh")])

    result.refresh()

    assert result.status == status
    if state == "discard":
        assert result.errors[0].exception_class is JobFailed
        assert result.errors[0].traceback == "go.Panic: oh"


@pytest.mark.django_db
def test_a_worker_in_go_runs_a_task_by_its_type(shop):
    result = shop.send_invoice.enqueue(order=7)

    job = claimed()
    engine.complete([Completion(job.id, "worker-7", result={"mailed": True})])

    stored = Job.objects.get()
    assert (stored.type, stored.args, stored.meta) == ("invoice.send", [{"order": 7}], {})
    result.refresh()
    assert result.return_value == {"mailed": True}
    assert result.kwargs == {"order": 7}


@pytest.mark.django_db
def test_a_job_from_a_client_in_go_runs_a_task(api, shop):
    one = api.pushed(type="invoice.send", args=[{"order": 8, "copy_to": "ada"}])
    other = api.pushed(type=f"{PATH}.add", args=[4, 5], queue="elsewhere")

    testing.run_jobs()

    assert api.job(one)["result"] == {"order": 8, "copy_to": "ada"}
    assert shop.add.get_result(other).return_value == 9


@pytest.mark.django_db
def test_a_result_of_another_task_or_of_no_task_is_refused(shop):
    added = shop.add.enqueue(1)
    plain = jobs.enqueue("email.send")

    with pytest.raises(Exception, match="does not match"):
        shop.decline.get_result(added.id)
    for identifier in (str(plain.id), str(uuid.uuid4()), "nonsense"):
        with pytest.raises(TaskResultDoesNotExist):
            shop.add.get_result(identifier)


@pytest.mark.django_db(transaction=True)
def test_the_async_variants(shop):
    async def view():
        result = await shop.add_slowly.aenqueue(1, 2)
        return await shop.add_slowly.aget_result(result.id)

    result = async_to_sync(view)()
    testing.run_jobs()

    result.refresh()
    assert result.return_value == 3


@pytest.mark.django_db
def test_arguments_that_are_not_json_are_refused(shop):
    with pytest.raises(TypeError):
        shop.add.enqueue(object())

    assert not Job.objects.exists()


@pytest.mark.parametrize("changes", [{"priority": 101}, {"queue_name": "Not A Queue"}])
def test_what_no_job_can_be_no_task_can(shop, changes):
    with pytest.raises(InvalidTask):
        shop.add.using(**changes)


def test_a_queue_outside_the_backends_queues_is_refused(shop, settings):
    settings.TASKS = {"default": {"BACKEND": "jobs.backends.OJSBackend", "QUEUES": ["mail"]}}

    with pytest.raises(InvalidTask):
        shop.add.using(queue_name="math")


def test_a_clients_word_imports_only_modules_of_the_site(shop):
    sys.modules.pop("this", None)

    assert find_task("this.s") is None
    assert "this" not in sys.modules
    assert find_task("os.path.join") is None
    assert find_task(f"{PATH}.CardDeclined") is None
    assert find_task(f"{PATH}.send_invoice") is None, "its type is another one"
    assert find_task("invoice.send") is shop.send_invoice


def test_the_worker_knows_imported_tasks_by_their_types(shop):
    assert {"invoice.send", f"{PATH}.add"} <= set(handlers.known())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"TYPE": {}}, "ojs.E011"),
        ({"TYPES": {"a.b": "tests.shop.tasks.missing"}}, "ojs.E013"),
        ({"TYPES": ["a.b"]}, "ojs.E013"),
        ({"TYPES": {"a.b": 5}}, "ojs.E013"),
        ({"TYPES": {5: "tests.shop.tasks.add"}}, "ojs.E013"),
        ({"TYPES": {"a.b": f"{PATH}.add", "a.c": f"{PATH}.add"}}, "ojs.W040"),
        ({"RETRY": {"max_attempts": -1}}, "ojs.E014"),
        ({"RETRY": 5}, "ojs.E014"),
        ({"RETRY": {"max_atempts": 5}}, "ojs.E014"),
    ],
)
def test_checks_report_a_misconfigured_backend(settings, options, problem):
    settings.TASKS = {"default": {"BACKEND": "jobs.backends.OJSBackend", "OPTIONS": options}}

    found = list(task_backends["default"].check())

    assert [message.id for message in found] == [problem]


def test_checks_are_silent_for_intervals_that_are_timedeltas(settings):
    options = {"RETRY": {"initial_interval": timedelta(seconds=10)}}
    settings.TASKS = {"default": {"BACKEND": "jobs.backends.OJSBackend", "OPTIONS": options}}

    assert list(task_backends["default"].check()) == []


def test_a_site_whose_modules_import_no_task_has_its_backend_checked(tmp_path):
    """The framework registers its check when it is imported, which may be nowhere."""
    program = """
import django
from django.conf import settings
from django.core.checks import run_checks

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "jobs"],
    TASKS={"default": {"BACKEND": "jobs.backends.OJSBackend", "OPTIONS": {"TYPE": {}}}},
)
django.setup()
print([message.id for message in run_checks() if message.id.startswith("ojs.")])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.stdout.strip() == "['ojs.E011']", done.stderr


def test_checks_are_silent_for_a_good_one():
    assert list(task_backends["default"].check()) == []
    assert run_checks(tags=["ojs"]) == []


# A worker that died (`task_finished` is sent by the process that takes its job back)


def test_the_end_of_a_task_whose_worker_died_is_signalled(
    db, shop, heard, django_capture_on_commit_callbacks
):
    result = shop.add.enqueue(1, 2)
    jobs.enqueue("in.go.only", max_attempts=1)
    Job.objects.update(max_attempts=2)

    for end in ("READY", "FAILED"):
        engine.claim(["default"], worker_id="died", count=2)
        heard.clear()
        with django_capture_on_commit_callbacks(execute=True):
            assert engine.reclaim(["died"]) == 2
        assert heard == [("finished", end)]

    assert shop.add.get_backend().get_result(result.id).status == TaskResultStatus.FAILED


def test_the_end_of_an_attempt_is_signalled_as_such_even_if_the_next_one_has_begun(
    db, shop, django_capture_on_commit_callbacks
):
    shop.add.enqueue(1, 2)
    engine.claim(["default"], worker_id="died")
    heard = []

    def receive(sender, task_result, **kwargs):
        heard.append((task_result.status, len(task_result.errors), task_result.is_finished))

    task_finished.connect(receive)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            assert engine.reclaim(["died"]) == 1
            engine.claim(["default"], worker_id="next")
    finally:
        task_finished.disconnect(receive)

    assert heard == [(TaskResultStatus.READY, 1, False)]


# Beside other backends, and other names of queues


def test_a_broken_backend_beside_ours_breaks_nothing(settings, db):
    settings.TASKS = TASKS | {"broken": {"BACKEND": "no.such.Backend"}}
    from tests.shop import tasks

    result = tasks.add.enqueue(1, 2)

    assert find_task(f"{PATH}.add") is not None
    assert tasks.add.get_result(result.id).status == TaskResultStatus.READY
    assert f"{PATH}.add" in handlers.known()


@pytest.mark.django_db
def test_queues_may_have_names_that_ojs_does_not_have(settings):
    names = {"QUEUE_NAMES": {"My_Queue": "my-queue"}}
    ours = TASKS["default"]
    options = ours["OPTIONS"] | names
    settings.TASKS = {"default": ours | {"QUEUES": ["My_Queue"], "OPTIONS": options}}
    from tests.shop import tasks

    result = tasks.add.using(queue_name="My_Queue").enqueue(1, 2)

    assert Job.objects.get().queue == "my-queue"
    assert tasks.add.get_result(result.id).task.queue_name == "My_Queue"
    assert list(task_backends["default"].check()) == []


@pytest.mark.parametrize(
    "names", [{"My_Queue": "Also_None"}, {"a_b": "same", "c_d": "same"}, {"a_b": 3}, ["a_b"]]
)
def test_a_wrong_name_of_a_queue_is_reported(settings, names):
    ours = TASKS["default"]
    settings.TASKS = {"default": ours | {"OPTIONS": {"QUEUE_NAMES": names}}}

    assert {error.id for error in task_backends["default"].check()} == {"ojs.E012"}


# Results in the tests of a site


def test_a_task_has_its_result_at_once_in_the_inline_mode(shop):
    with testing.inline():
        result = shop.add.enqueue(1, 2)

    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)


def test_a_task_has_its_result_when_it_has_run_in_the_fake_mode(shop):
    with testing.fake():
        result = shop.add.enqueue(1, 2)
        assert result.status == TaskResultStatus.READY
        testing.run_jobs()
        result.refresh()

    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)


def test_a_result_that_is_not_json_is_a_type_error(shop):
    with testing.fake():
        result = shop.opaque.enqueue()
        testing.run_jobs()
        result.refresh()

    assert result.status == TaskResultStatus.FAILED
    assert [error.exception_class for error in result.errors] == [TypeError]
