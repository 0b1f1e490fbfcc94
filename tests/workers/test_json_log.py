"""Log lines as JSON: each line of a handler names its job (OJS logging)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from django.test import override_settings
from opentelemetry import trace

import jobs
from jobs import testing
from tests.processes import ROOT
from tests.spans import exporter, traceparent
from workers.json_log import JSONFormatter, is_used
from workers.runtime import handlers
from workers.runtime.client import LocalClient
from workers.runtime.options import Options
from workers.runtime.process import WorkerProcess

elsewhere = logging.getLogger("elsewhere.library")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Kept(logging.Handler):
    """Keeps the log lines, parsed."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []
        self.setFormatter(JSONFormatter())

    def emit(self, record):
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines():
    """The log lines, parsed."""
    kept = Kept()
    root = logging.getLogger()
    level = root.level
    root.addHandler(kept)
    root.setLevel(logging.INFO)
    yield kept.lines
    root.setLevel(level)
    root.removeHandler(kept)


@contextmanager
def lines_of_jobs():
    """The log lines of attempts, which nothing else hears: pytest-xdist cannot send half a
    character. No fixture, because pytest listens to loggers as it finds them when a test begins.
    """
    kept = Kept()
    logger = logging.getLogger("workers.job")
    logger.addHandler(kept)
    logger.propagate = False
    yield kept.lines
    logger.propagate = True
    logger.removeHandler(kept)


@pytest.fixture
def talking():
    @handlers.handler("tests.talk")
    def talk(context, how):
        elsewhere.warning("about %s", "something")
        if how == "fail":
            raise ConnectionError("no route")
        context.log("so far", pages=7)

    yield
    handlers.forget("tests.talk")


@pytest.mark.django_db
@override_settings(OJS={"EXECUTION_MIDDLEWARE": ["jobs.middleware.LogExecution"]})
def test_every_line_of_a_handler_names_its_job_and_its_trace(lines, talking):
    meta = {"traceparent": TRACE, "correlation_id": "request-7"}
    made = jobs.enqueue("tests.talk", ["secret"], queue="mail", meta=meta)

    testing.run_jobs()

    foreign, own, done = (line for line in lines if line["component"] == "worker")
    assert {name: foreign[name] for name in ("severity", "severity_number", "message")} == {
        "severity": "WARN",
        "severity_number": 13,
        "message": "about something",
    }
    for line in (foreign, own, done):
        assert line["ojs"] == {
            "job_id": str(made.id),
            "job_type": "tests.talk",
            "queue": "mail",
            "attempt": 1,
            "worker_id": "ojs-testing",
            "correlation_id": "request-7",
        }
        assert line["trace"]["trace_id"] == TRACE.split("-")[1]
        assert line["timestamp"].endswith("Z")
    assert own["attributes"] == {"pages": 7}
    assert done["attributes"]["duration_ms"] > 0
    assert "secret" not in json.dumps(lines)


@pytest.mark.django_db
def test_the_end_of_an_attempt_names_its_job_outside_of_it_as_well(
    lines, talking, django_capture_on_commit_callbacks
):
    made = jobs.enqueue("tests.talk", ["fail"])

    with django_capture_on_commit_callbacks(execute=True):
        testing.run_jobs()

    parsed = next(line for line in lines if "failed attempt 1" in line["message"])
    assert parsed["category"] == "lifecycle"
    assert parsed["ojs"] == {
        "job_id": str(made.id),
        "job_type": "tests.talk",
        "queue": "default",
        "attempt": 1,
        "state": "retryable",
    }
    assert parsed["error"].keys() == {"type", "message"}


def test_a_line_inside_a_span_names_it(lines):
    exporter()
    with trace.get_tracer("site").start_as_current_span("GET /") as span:
        elsewhere.info("there")

    (line,) = lines
    _, trace_id, span_id, _ = traceparent(span).split("-")
    assert line["trace"] == {"trace_id": trace_id, "span_id": span_id}


@pytest.mark.parametrize("context", ["a-b-c-d", TRACE + "-x", 5])
def test_a_line_names_no_trace_that_is_not_valid(lines, context):
    elsewhere.info("there", extra={"traceparent": context})

    assert "trace" not in lines[0]


@pytest.mark.parametrize(
    ("logger", "component", "category"),
    [
        ("jobs", "server", None),
        ("workers", "server", "worker"),
        ("workers.reaper", "server", None),
        ("workers.runtime", "worker", "worker"),
        ("workers.job", "worker", None),
        ("elsewhere", "server", None),
    ],
)
def test_a_line_names_the_component_that_wrote_it(lines, logger, component, category):
    logging.getLogger(logger).info("there")

    (line,) = lines
    assert (line["component"], line.get("category")) == (component, category)


def test_commands_print_json_or_nothing(lines):
    root = logging.getLogger()
    assert is_used()

    (kept,) = (each for each in root.handlers if isinstance(each.formatter, JSONFormatter))
    root.removeHandler(kept)
    assert not is_used()
    root.addHandler(kept)


def test_an_error_comes_with_where_it_happened_and_no_job_where_there_is_none(lines):
    try:
        raise KeyError("missing")
    except KeyError:
        elsewhere.exception("oh")

    (line,) = lines
    assert (line["severity"], line["component"]) == ("ERROR", "server")
    assert line["category"] == "error"
    assert (line["error"]["type"], line["error"]["message"]) == ("KeyError", "'missing'")
    assert "test_json_log.py" in line["error"]["backtrace"]
    assert not {"ojs", "trace", "attributes"} & line.keys()


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("lost for words")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (OSError("cannot open \udcff.txt"), r"cannot open \udcff.txt"),
        (Mute(), "<exception str() failed>"),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_no_error_costs_a_log_its_line(problem, message):
    @handlers.handler("tests.tell")
    def tell(context):
        raise problem

    made = jobs.enqueue("tests.tell", max_attempts=1)
    with lines_of_jobs() as lines:
        WorkerProcess(LocalClient("w"), Options(queues=["default"], burst=True)).run()
    handlers.forget("tests.tell")

    (line,) = lines
    assert line["message"] == f"[tests.tell {made.id}] Attempt 1 of 1 failed: {message}"
    assert line["error"]["message"] == message
    assert "test_json_log.py" in line["error"]["backtrace"]
    assert made.refresh().errors[0].message == message


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (2**70, str(2**70)),
        ("half \ud800", r"half \ud800"),
        (
            {7: {None: datetime(2026, 8, 1, tzinfo=UTC)}},
            {"7": {"None": "2026-08-01T00:00:00+00:00"}},
        ),
        ([2**70, 0.5, True, (None, "é")], [str(2**70), 0.5, True, [None, "é"]]),
        (Mute(), "<Mute str() failed>"),
    ],
)
def test_no_attribute_costs_a_log_its_line(lines, value, written):
    elsewhere.info("so far", extra={"attributes": {"given": value}})

    (line,) = lines
    assert (line["message"], line["attributes"]) == ("so far", {"given": written})


def test_a_value_that_contains_itself_costs_a_log_no_line(lines):
    endless = []
    endless += [endless, {"again": endless}]

    elsewhere.info("so far", extra={"attributes": {"given": endless}})

    (line,) = lines
    assert (line["message"], len(line["attributes"]["given"])) == ("so far", 2)


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [(("%d pages", "no number"), "%d pages (TypeError: "), (("of %s", Mute()), "of %s (Runtime")],
)
def test_arguments_that_do_not_fit_cost_a_log_no_line(arguments, begins):
    template, value = arguments
    record = logging.LogRecord("elsewhere", logging.WARNING, __file__, 1, template, (value,), None)

    assert json.loads(JSONFormatter().format(record))["message"].startswith(begins)


SITE = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "jobs", "workers"],
    LOGGING={
        "version": 1,
        "formatters": {"json": {"()": "workers.json_log.JSONFormatter"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    },
)
django.setup()
import logging
logging.getLogger("a.site").info("there")
"""


def test_a_site_can_name_it_in_its_settings():
    """When logging is configured, no app may be imported yet."""
    done = subprocess.run(
        [sys.executable, "-c", SITE], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert json.loads(done.stderr)["message"] == "there"
