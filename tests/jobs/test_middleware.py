"""Both chains: order, dropping, errors, changes; the context in `meta`."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils import translation

import jobs
from jobs import testing
from jobs.errors import InvalidRequest
from jobs.middleware import RequestContext, enqueue_chain, execution_chain, job_context
from jobs.models import Job
from workers.runtime import handlers

HERE = "tests.jobs.test_middleware"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Mark:
    """Appends its letter to `meta["order"]` on the way in."""

    letter = "a"

    def __call__(self, job, next):
        job["meta"]["order"] = job["meta"].get("order", "") + self.letter
        return next(job)


class MarkB(Mark):
    letter = "b"


def drop_spam(job, next):
    return None if job["type"] == "spam.send" else next(job)


def route(job, next):
    return next(job | {"queue": "routed"})


def rename(job, next):
    return next(job | {"id": "0190b5a7-7e7a-7c3a-8b1a-000000000000"})


def break_queue(job, next):
    return next(job | {"queue": "Not A Queue"})


def veto(job, next):
    raise PermissionError("not today")


def forget_to_return(job, next):
    next(job)
    return True


@pytest.fixture
def chain(settings):
    def install(*names, option="ENQUEUE_MIDDLEWARE"):
        settings.OJS = {**settings.OJS, option: [f"{HERE}.{name}" for name in names]}

    return install


@pytest.fixture
def spoken():
    """The environment that the handler `tests.speak` saw."""
    seen = []

    @handlers.handler("tests.speak")
    def speak(context, *args):
        seen.append(translation.get_language())
        made = jobs.enqueue("tests.follow")
        return made.meta if made else None

    @handlers.handler("tests.follow")
    def follow(context):
        seen.append(context.meta)

    yield seen
    handlers.forget("tests.speak")
    handlers.forget("tests.follow")


@pytest.mark.django_db
def test_middleware_runs_in_the_order_of_the_setting(chain):
    chain("Mark", "MarkB", "route")

    made = jobs.enqueue("email.send")

    assert made.meta == {"order": "ab"}
    assert Job.objects.get().queue == "routed"


@pytest.mark.django_db
def test_each_job_of_a_batch_is_looked_at_and_a_dropped_one_is_missing(chain):
    chain("drop_spam")

    made = jobs.enqueue_many([{"type": "spam.send"}, {"type": "email.send"}])

    assert made[0] is None
    assert Job.objects.get().pk == made[1].id
    assert jobs.enqueue("spam.send") is None


@pytest.mark.django_db
def test_an_error_aborts_the_enqueue(chain):
    chain("veto", "Mark")

    with pytest.raises(PermissionError):
        jobs.enqueue_many([{"type": "email.send"}])

    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("name", "field"), [("rename", "id"), ("break_queue", "queue")], ids=["id", "queue"]
)
def test_what_middleware_made_of_a_job_is_checked(chain, name, field):
    chain(name)

    with pytest.raises(InvalidRequest) as caught:
        jobs.enqueue("email.send")

    assert caught.value.details["field"] == field


def test_a_middleware_that_returns_something_else_is_a_bug_with_a_name(chain):
    chain("forget_to_return")

    with pytest.raises(TypeError, match="forget_to_return"):
        jobs.enqueue("email.send")


def test_a_chain_can_be_changed_until_it_is_used(chain):
    chain("Mark")
    enqueue_chain.add(f"{HERE}.MarkB")
    enqueue_chain.prepend(drop_spam)
    enqueue_chain.insert_before(f"{HERE}.MarkB", "one")
    enqueue_chain.insert_after("one", route)
    enqueue_chain.remove("one")

    assert enqueue_chain.entries == [drop_spam, f"{HERE}.Mark", route, f"{HERE}.MarkB"]
    with testing.fake():
        assert jobs.enqueue("email.send").meta == {"order": "ab"}
    with pytest.raises(ImproperlyConfigured):
        enqueue_chain.add(veto)


def test_a_middleware_that_cannot_be_imported_is_reported_by_a_check(chain):
    chain("nothing_here", option="EXECUTION_MIDDLEWARE")

    assert "ojs.E005" in [problem.id for problem in run_checks(tags=["ojs"])]


def test_one_for_requests_among_those_for_jobs_is_reported_by_a_check(settings):
    settings.OJS = {"ENQUEUE_MIDDLEWARE": ["jobs.middleware.RequestContext"]}

    (problem,) = run_checks(tags=["ojs"])

    assert problem.id == "ojs.E005"
    assert "get_response" in problem.msg


@pytest.mark.django_db
def test_the_request_a_job_comes_from_travels_in_its_meta(settings):
    settings.OJS = {"ENQUEUE_MIDDLEWARE": ["jobs.middleware.ContextMiddleware"]}
    request = RequestFactory().get("/", headers={"traceparent": TRACE, "X-Request-Id": "req_1"})
    request.user = User.objects.create(username="ada")

    def view(request):
        with translation.override("de"):
            jobs.enqueue("email.send", meta={"own": 1})
        return HttpResponse()

    RequestContext(view)(request)

    assert Job.objects.get().meta == {
        "own": 1,
        "ojs.context.user_id": str(request.user.pk),
        "ojs.context.request_id": "req_1",
        "ojs.context.locale": "de",
        "traceparent": TRACE,
    }


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"traceparent": TRACE, "tracestate": "a=b"}, {"traceparent", "tracestate"}),
        ({"traceparent": TRACE, "tracestate": "no members"}, {"traceparent"}),
        ({"traceparent": TRACE + "-x", "tracestate": "a=b"}, set()),
        ({"traceparent": "nonsense"}, set()),
        ({"tracestate": "a=b"}, set()),
    ],
)
def test_a_trace_context_of_a_visitor_that_is_not_valid_is_ignored(settings, sent, kept):
    settings.OJS = {"ENQUEUE_MIDDLEWARE": ["jobs.middleware.ContextMiddleware"]}

    with testing.fake():
        RequestContext(lambda request: jobs.enqueue("email.send"))(
            RequestFactory().get("/", headers=sent)
        )
        (job,) = testing.all_enqueued()

    assert job.meta.keys() & {"traceparent", "tracestate"} == kept


def test_an_async_view_and_an_anonymous_visitor(settings):
    settings.OJS = {"ENQUEUE_MIDDLEWARE": ["jobs.middleware.ContextMiddleware"]}
    request = RequestFactory().get("/", headers={"X-Request-Id": "req_2"})
    request.user = AnonymousUser()

    async def view(request):
        await jobs.aenqueue("email.send")
        return HttpResponse()

    with testing.fake():
        async_to_sync(RequestContext(view))(request)

        (job,) = testing.all_enqueued()
        assert job.meta["ojs.context.request_id"] == "req_2"
        assert "ojs.context.user_id" not in job.meta


def test_outside_a_request_no_request_is_known(settings):
    settings.OJS = {"ENQUEUE_MIDDLEWARE": ["jobs.middleware.ContextMiddleware"]}
    with testing.fake(), job_context(tenant_id="acme"):
        jobs.enqueue("email.send")

        testing.assert_enqueued("email.send", meta={"tenant_id": "acme"})


def test_a_job_runs_in_the_locale_it_was_enqueued_in_and_hands_its_context_on(settings, spoken):
    settings.OJS = {
        "ENQUEUE_MIDDLEWARE": ["jobs.middleware.ContextMiddleware"],
        "EXECUTION_MIDDLEWARE": ["jobs.middleware.RestoreContext"],
    }
    with testing.fake():
        with translation.override("de"), job_context(traceparent=TRACE):
            jobs.enqueue("tests.speak")
        testing.run_jobs()

    assert spoken[0] == "de"
    assert spoken[1] == {"ojs.context.locale": "de", "traceparent": TRACE}


class Around:
    """Wraps the result in its letter."""

    def __call__(self, context, next):
        return f"({next()})"


class AsyncAround:
    async def __call__(self, context, next):
        return f"[{await next()}]"


def twice(context, next):
    next()
    return next()


@pytest.fixture
def said():
    @handlers.handler("tests.say")
    def say(context, word):
        return word

    @handlers.handler("tests.say_slowly")
    async def say_slowly(context, word):
        return word

    yield
    handlers.forget("tests.say")
    handlers.forget("tests.say_slowly")


@pytest.mark.parametrize("kind", ["tests.say", "tests.say_slowly"])
def test_execution_middleware_of_both_kinds_wraps_handlers_of_both_kinds(chain, said, kind):
    chain("Around", "AsyncAround", option="EXECUTION_MIDDLEWARE")

    with testing.inline() as session:
        jobs.enqueue(kind, ["word"])

    assert session.jobs[0].result == "([word])"


@pytest.mark.parametrize("kind", ["tests.say", "tests.say_slowly"])
def test_calling_next_twice_is_an_error_not_two_executions(chain, said, kind):
    chain("twice", option="EXECUTION_MIDDLEWARE")

    with testing.inline(), pytest.raises(RuntimeError, match="more than once"):
        jobs.enqueue(kind, ["word"])


def test_execution_chain_is_empty_by_default():
    assert execution_chain.build() == ()
