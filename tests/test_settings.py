"""Settings of the stand-alone project, read in processes with separate environments."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from psycopg import IsolationLevel

from jobs.store import keepalive
from ojs_project import telemetry
from ojs_project.databases import database
from ojs_project.environment import choice, flag, log_level, misread, ojs_options
from ojs_project.health import PROBES
from tests.once import once_is_enough
from tests.processes import PATIENCE

pytestmark = once_is_enough

ROOT = Path(__file__).resolve().parent.parent

PRODUCTION = {
    "DJANGO_SECRET_KEY": "a-long-random-text-of-more-than-fifty-characters-0123456789",
    "DJANGO_ALLOWED_HOSTS": "jobs.example.com",
    "DJANGO_CSRF_TRUSTED_ORIGINS": "https://jobs.example.com",
    "DJANGO_SECURE_SSL_REDIRECT": "1",
    "DJANGO_SECURE_PROXY_SSL_HEADER": "1",
    "DJANGO_SECURE_HSTS_SECONDS": "31536000",
    "DJANGO_SECURE_HSTS_INCLUDE_SUBDOMAINS": "1",
    "DJANGO_SECURE_HSTS_PRELOAD": "1",
    # Never connected to: the checks do not touch the database.
    "DATABASE_URL": "postgresql://ojs:secret@localhost/ojs",
}

SHOW = """
import json, sys
from ojs_project import settings
print(json.dumps({name: getattr(settings, name) for name in sys.argv[1:]}, default=str))
"""


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("OJS_", "DJANGO_", "DATABASE_URL"))
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=inherited | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def show(*names: str, **variables: str) -> dict:
    result = run("-c", SHOW, *names, **variables)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.slow
def test_production_settings_pass_the_deployment_checks():
    result = run("manage.py", "check", "--deploy", "--fail-level", "WARNING", **PRODUCTION)

    assert result.returncode == 0, result.stderr


ASK = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "ojs_project.settings"
import django
django.setup()
from django.test import Client
for path in sys.argv[1:]:
    print(Client().get(path, HTTP_HOST="jobs.example.com").status_code)
"""


def test_probes_are_not_sent_to_https():
    elsewhere = ["/ojs/v1/jobs", "/metrics", "/healthy", "/admin/health", "/"]
    variables = PRODUCTION | {
        "DATABASE_URL": "sqlite://:memory:",
        "DJANGO_SECURE_REDIRECT_EXEMPT": "^own/probe$",
    }

    result = run("-c", ASK, *PROBES, "/own/probe", *elsewhere, **variables)

    statuses = [int(line) for line in result.stdout.split()]
    assert len(statuses) == len(PROBES) + 1 + len(elsewhere), result.stderr
    probed, others = statuses[: len(PROBES) + 1], statuses[len(PROBES) + 1 :]
    assert not {301, 401, 403, 404} & set(probed[:-1])
    assert 200 in probed
    assert probed[-1] == 404
    assert set(others) == {301}


def test_a_missing_secret_key_is_one_clear_sentence():
    result = run("manage.py", "migrate")

    assert result.returncode == 1
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("Set DJANGO_SECRET_KEY to a long random text")


def test_postgresql_connections_are_kept():
    (database,) = show("DATABASES", **PRODUCTION)["DATABASES"].values()

    assert database["HOST"] == "localhost"
    assert database["CONN_MAX_AGE"] is None


@pytest.mark.parametrize(("text", "pool"), [("1", True), ('{"max_size": 20}', {"max_size": 20})])
def test_a_pool_takes_the_place_of_kept_connections(text, pool):
    (database,) = show("DATABASES", **PRODUCTION, OJS_DB_POOL=text)["DATABASES"].values()

    assert database["OPTIONS"]["pool"] == pool
    assert database["CONN_MAX_AGE"] == 0


@pytest.mark.parametrize(
    ("place", "hosts", "ports"),
    [
        ("a,b", "a,b", "5432,5432"),
        ("u:p%2C@a:5433,b", "a,b", "5433,5432"),
        ("u:p,q@[::1]:1,10.0.0.7:2", "::1,10.0.0.7", "1,2"),
        ("%2Frun%2Fpg,b", "/run/pg,b", "5432,5432"),
    ],
)
def test_a_database_on_several_hosts(place, hosts, ports):
    url = f"postgresql://{place}/ojs?target_session_attrs=read-write&connect_timeout=7"

    found = database(url, {})

    assert (found["HOST"], found["PORT"], found["NAME"]) == (hosts, ports, "ojs")
    assert found["OPTIONS"]["target_session_attrs"] == "read-write"
    assert int(found["OPTIONS"]["connect_timeout"]) == 7, "what the URL says wins"


def test_each_of_several_hosts_is_given_less_time_than_a_single_one():
    """After a failover, each new connection first tries the host that is gone."""
    one = database("postgresql://a/ojs", {})["OPTIONS"]["connect_timeout"]
    several = database("postgresql://a,b/ojs", {})["OPTIONS"]["connect_timeout"]

    assert several < one


@pytest.mark.parametrize(
    "password", ["hidden/word", "hidden#word", "hidden?word", "hidden[word", "1/word"]
)
def test_a_password_that_is_not_encoded_is_named_as_the_likely_reason(password):
    with pytest.raises(ImproperlyConfigured, match="percent-encoded: / is %2F") as refused:
        database(f"postgresql://ojs:{password}@db.example.com/ojs", {})
    assert "hidden" not in str(refused.value) and "word@" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@a,/ojs", "postgresql://u:secret@a:x,b/ojs", "u:secret@nowhere"]
)
def test_what_is_no_url_is_refused_without_showing_the_password(url):
    with pytest.raises(ImproperlyConfigured) as refusal:
        database(url, {})

    assert "DATABASE_URL" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_silent_database_is_noticed_by_default():
    options = database("postgresql://db.example.com/ojs", {})["OPTIONS"]

    assert options.items() >= keepalive.PARAMETERS.items()
    own = database("postgresql://db.example.com/ojs?keepalives_idle=60", {})["OPTIONS"]
    assert int(own["keepalives_idle"]) == 60


def test_transactions_are_isolated_as_unique_jobs_need_it_whatever_the_servers_default():
    options = database("postgresql://db.example.com/ojs", {})["OPTIONS"]

    assert options["isolation_level"] == IsolationLevel.READ_COMMITTED
    assert "isolation_level" not in database("sqlite:///ojs.sqlite3", {})["OPTIONS"]


def test_what_a_pooler_wants_is_said_by_variables():
    url = "postgresql://db.example.com/ojs"
    pooler = {"DJANGO_DB_DISABLE_SERVER_SIDE_CURSORS": "1", "DJANGO_DB_CONN_HEALTH_CHECKS": "1"}

    plain, pooled = database(url, {}), database(url, pooler)

    names = ("DISABLE_SERVER_SIDE_CURSORS", "CONN_HEALTH_CHECKS")
    assert [plain[name] for name in names] == [False, False]
    assert [pooled[name] for name in names] == [True, True]


def test_connections_of_a_pool_are_asked_whether_they_live():
    """A persistent connection shows that it is dead; one from a pool does not."""
    assert database("postgresql://db.example.com/ojs", {"OJS_DB_POOL": "1"})["CONN_HEALTH_CHECKS"]


def test_sqlite_waits_its_turn(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.sqlite3"
    (database,) = show("DATABASES", DJANGO_DEBUG="1", DATABASE_URL=url)["DATABASES"].values()

    assert database["NAME"] == f"{tmp_path}/jobs.sqlite3"
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


def test_every_variable_of_the_job_server_becomes_an_option():
    environ = {
        "OJS_HEARTBEAT_TIMEOUT": "45",
        "OJS_REAPER_INTERVAL": "0.2",
        "OJS_REQUIRE_WORKER_ID": "true",
        "OJS_REDACT_KEYS": '["*iban*", "*pin*"]',
        "OJS_QUEUES": "one that is none",
        "OJS_AGQ": '{"HOST": "localhost"}',
        "OJS_AGQ_PORT": "6380",
        "OJS_TEST_DATABASE": "postgres",
        "OJS_DB_POOL": "1",
        "PATH": "/bin",
    }
    assert ojs_options(environ) == {
        "HEARTBEAT_TIMEOUT": 45,
        "REAPER_INTERVAL": 0.2,
        "REQUIRE_WORKER_ID": True,
        "REDACT_KEYS": ["*iban*", "*pin*"],
        "AGQ": {"HOST": "localhost", "PORT": 6380},
    }


def test_variables_of_a_listed_protocol_are_options_of_its_own():
    listed = '["workers.bindings.ojs", "tests.drum"]'
    environ = {"OJS_WORKER_PROTOCOLS": listed, "OJS_DRUM_PORT": "7", "OJS_AGQ_PORT": "8"}

    assert ojs_options(environ) == {
        "WORKER_PROTOCOLS": ["workers.bindings.ojs", "tests.drum"],
        "DRUM": {"PORT": 7},
    }
    assert [problem for problem, _ in misread(environ)] == [
        "OJS_AGQ_PORT is ignored: there is no such option."
    ]


@pytest.mark.parametrize(
    ("listed", "problem"),
    [("workers.bindings.ojs", "must be a JSON list"), ('["no.such"]', "cannot be imported")],
)
def test_a_list_of_protocols_that_cannot_be_loaded_is_refused(listed, problem):
    with pytest.raises(ImproperlyConfigured, match=problem):
        ojs_options({"OJS_WORKER_PROTOCOLS": listed})


@pytest.mark.parametrize(
    ("text", "answer"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)]
)
def test_flags_say_yes_or_no(text, answer):
    assert flag({"DJANGO_DEBUG": text}, "DJANGO_DEBUG") is answer


KUBERNETES = {
    "OJS_SERVICE_HOST": "10.0.0.1",
    "OJS_SERVICE_PORT": "8000",
    "OJS_SERVICE_PORT_HTTP": "8000",
    "OJS_PORT": "tcp://10.0.0.1:8000",
    "OJS_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "OJS_PORT_8000_TCP_PROTO": "tcp",
    "OJS_PORT_8000_TCP_PORT": "8000",
    "OJS_PORT_8000_TCP_ADDR": "10.0.0.1",
    "OJS_AGQ_SERVICE_HOST": "10.0.0.2",
    "OJS_AGQ_SERVICE_PORT": "6380",
    "OJS_AGQ_PORT_6380_TCP_ADDR": "10.0.0.2",
    "OJS_REAPER_METRICS_PORT": "udp://10.0.0.3:9100",
}


def test_what_kubernetes_sets_beside_us_is_passed_over():
    assert ojs_options(KUBERNETES) == {}
    assert list(misread(KUBERNETES)) == []


def test_an_address_in_the_place_of_an_option_is_ignored_and_reported():
    environ = KUBERNETES | {"OJS_AGQ_PORT": "tcp://10.0.0.2:6380", "OJS_AGQ_HOST": "0.0.0.0"}

    assert ojs_options(environ) == {"AGQ": {"HOST": "0.0.0.0"}}
    ((problem, hint),) = misread(environ)
    assert "OJS_AGQ_PORT is ignored" in problem
    assert "enableServiceLinks" in hint


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("OJS_HEARTBEAT_TIMOUT", "Did you mean OJS_HEARTBEAT_TIMEOUT?"),
        ("OJS_AGQ_HOSST", "Did you mean OJS_AGQ_HOST?"),
        ("OJS_AGQ_TREADS", "Did you mean OJS_AGQ_THREADS?"),
        ("OJS_ALLOW_ANONYMUS", "Did you mean OJS_ALLOW_ANONYMOUS?"),
        ("OJS_SOMETHING_ELSE_ENTIRELY", "`manage.py ojsconfig` lists them."),
    ],
)
def test_a_typo_is_a_warning_that_says_what_was_meant(variable, hint):
    assert list(misread({variable: "30"})) == [
        (f"{variable} is ignored: there is no such option.", hint)
    ]


@pytest.mark.slow
def test_no_variable_of_others_stops_a_command():
    environ = PRODUCTION | KUBERNETES | {"OJS_AGQ_PORT": "tcp://10.0.0.2:6380"}
    result = run("manage.py", "check", **environ, OJS_HEARTBEAT_TIMOUT="30")

    assert result.returncode == 0, result.stderr
    assert "OJS_HEARTBEAT_TIMOUT is ignored" in result.stderr
    assert "OJS_AGQ_PORT is ignored" in result.stderr
    assert "OJS_SERVICE_HOST" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OJS_ALLOW_ANONYMOUS": "1"}, "serves everybody; it is refused outside DEBUG"),
        ({"OJS_CONFORMANCE_MODE": "1"}, "refused outside DEBUG"),
        ({"OJS_MAX_WAIT": "soon"}, "must be a number of seconds"),
    ],
)
def test_a_server_refuses_what_every_command_refuses(variables, problem):
    result = run("-c", "import ojs_project.wsgi", **PRODUCTION | variables)

    assert result.returncode == 1
    assert problem in result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_server_warns_of_what_it_ignores():
    result = run("-c", "import ojs_project.wsgi", **PRODUCTION, OJS_HEARTBEAT_TIMOUT="30")

    assert result.returncode == 0, result.stderr
    assert "OJS_HEARTBEAT_TIMOUT is ignored" in result.stderr


# OpenTelemetry and log lines

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
BOTH = {"OPENTELEMETRY": True, "METRICS_EXPORTER": telemetry.METRICS_EXPORTER}


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, {}),
        (ENDPOINT, BOTH),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"}, BOTH),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, {"OPENTELEMETRY": True}),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, {}),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a/v1/traces"}, {"OPENTELEMETRY": True}),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, {}),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, BOTH),
    ],
)
def test_the_usual_variables_switch_opentelemetry_on(environ, options):
    assert telemetry.options(environ) == options


def test_a_protocol_of_otlp_that_is_not_there_is_refused():
    with pytest.raises(ImproperlyConfigured, match="OTEL_EXPORTER_OTLP_PROTOCOL must be"):
        telemetry.options(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


@pytest.mark.parametrize(
    ("given", "level"), [(None, "INFO"), ("", "INFO"), ("debug", "DEBUG"), ("WARN", "WARN")]
)
def test_the_log_has_a_level(given, level):
    environ = {} if given is None else {"DJANGO_LOG_LEVEL": given}

    assert log_level(environ, "DJANGO_LOG_LEVEL") == level
    assert level in logging.getLevelNamesMapping()


def test_a_level_that_does_not_exist_is_refused():
    with pytest.raises(ImproperlyConfigured, match="DJANGO_LOG_LEVEL must be one of info, debug"):
        log_level({"DJANGO_LOG_LEVEL": "foo"}, "DJANGO_LOG_LEVEL")


def test_log_lines_are_text_or_json():
    assert choice({}, "DJANGO_LOG_FORMAT", "text", "json") == "text"
    assert choice({"DJANGO_LOG_FORMAT": "JSON"}, "DJANGO_LOG_FORMAT", "text", "json") == "json"
    with pytest.raises(ImproperlyConfigured, match="one of text, json, not 'xml'"):
        choice({"DJANGO_LOG_FORMAT": "xml"}, "DJANGO_LOG_FORMAT", "text", "json")
