"""`OJS` setting, and the errors for a wrong one (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
import sys
import types
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandError, SystemCheckError
from django.db import connections
from django.urls import clear_url_caches

from jobs.checks import check_database, check_settings
from jobs.conf import Settings, configured, ojs_settings, protocols
from jobs.protocols import DEFAULT_PACKAGES, Server, WorkerProtocol
from tests.database import alias, connection
from tests.processes import ROOT


def complaints() -> list[str]:
    return [message.id for message in check_settings()]


@pytest.fixture(autouse=True)
def development(settings):
    settings.DEBUG = True


# Reading


def test_the_defaults_are_those_of_the_worker_protocol():
    """Appendix A."""
    assert timedelta(seconds=5) == ojs_settings.HEARTBEAT_INTERVAL
    assert timedelta(seconds=30) == ojs_settings.HEARTBEAT_TIMEOUT
    assert timedelta(minutes=30) == ojs_settings.VISIBILITY_TIMEOUT
    assert timedelta(seconds=25) == ojs_settings.GRACE_PERIOD
    assert ojs_settings.CONCURRENCY == 10


def test_nothing_is_open_or_unsafe_by_default():
    assert ojs_settings.ALLOW_ANONYMOUS is False
    assert ojs_settings.CONFORMANCE_MODE is False


def test_every_option_explains_itself():
    groups = [protocol.options for protocol in protocols() if protocol.options]
    for option in (option for group in (Settings, *groups) for option in fields(group)):
        assert option.metadata["help"].endswith("."), option.name


def test_options_are_read_anew_when_the_setting_changes(settings):
    settings.OJS = {"MAX_FETCH": 7, "VISIBILITY_TIMEOUT": 1.5}
    assert ojs_settings.MAX_FETCH == 7
    assert timedelta(seconds=1.5) == ojs_settings.VISIBILITY_TIMEOUT

    settings.OJS = {"VISIBILITY_TIMEOUT": timedelta(hours=1)}
    assert ojs_settings.MAX_FETCH == 1000
    assert timedelta(hours=1) == ojs_settings.VISIBILITY_TIMEOUT


@pytest.mark.parametrize("value", [True, 1])
def test_a_flag_may_be_written_as_a_number(settings, value):
    settings.OJS = {"REQUIRE_WORKER_ID": value}

    assert ojs_settings.REQUIRE_WORKER_ID is True


@pytest.mark.parametrize("absent", [None, {}])
def test_a_site_without_the_setting_gets_the_defaults(settings, absent):
    settings.OJS = absent

    assert configured() == Settings()
    assert complaints() == []


def test_options_cannot_be_changed_in_passing():
    with pytest.raises(AttributeError):
        configured().MAX_FETCH = 7


# Checking

TRIGGER = {"match": {"type": "com.example.order"}, "job_type": "order.ship"}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("HEARTBEAT_TIMOUT", "Did you mean 'HEARTBEAT_TIMEOUT'?"),
        ("max_fetch", "See the configuration reference."),
        ("NONSENSE", "See the configuration reference."),
        (1, "See the configuration reference."),
    ],
)
def test_an_unknown_option_is_an_error_that_helps(settings, given, hint):
    settings.OJS = {given: 1}

    (message,) = check_settings()

    assert (message.id, message.hint) == ("ojs.E001", hint)
    assert repr(given) in message.msg


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("HEARTBEAT_TIMEOUT", "30"),
        ("HEARTBEAT_TIMEOUT", -1),
        ("HEARTBEAT_TIMEOUT", True),
        ("HEARTBEAT_TIMEOUT", 0),
        ("VISIBILITY_TIMEOUT", timedelta(0)),
        ("AGQ", {"HEARTBEAT_TIMEOUT": 0}),
        ("HEARTBEAT_TIMEOUT", None),
        ("HEARTBEAT_TIMEOUT", float("nan")),
        ("HEARTBEAT_TIMEOUT", float("inf")),
        ("HEARTBEAT_TIMEOUT", 1e20),
        ("MAX_FETCH", "1000"),
        ("MAX_FETCH", 1.5),
        ("MAX_FETCH", True),
        ("MAX_FETCH", -1),
        ("ALLOW_ANONYMOUS", "yes"),
        ("ALLOW_ANONYMOUS", 2),
        ("SERVER_THREADS", 0),
        ("SERVER_PORT", 99999),
        ("MAX_BATCH", 0),
        ("REDACT_KEYS", [1]),
        ("OUTBOUND_NETWORKS", [None]),
        ("AGQ", {"THREADS": 0}),
        ("ROTA", {"PORT": 65536}),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_and_no_traceback(settings, option, value):
    settings.OJS = {option: value}

    (message,) = check_settings()

    assert message.id == "ojs.E002"
    assert option in message.msg
    with pytest.raises(ImproperlyConfigured):
        configured()


@pytest.mark.parametrize(
    ("option", "value", "check"),
    [
        ("SITE_URL", "jobs.example.com", "ojs.E034"),
        ("CODEC_SERVER_URL", "nonsense", "ojs.E034"),
        ("METRICS_EXPORTER", "no.such.Exporter", "ojs.E035"),
        ("TENANTS", {"acme": None}, "ojs.E025"),
        ("TENANTS", {"acme": []}, "ojs.E025"),
        ("TENANTS", {1: {}}, "ojs.E025"),
        ("SITE_URL", "https://", "ojs.E034"),
        ("SITE_URL", "https://[", "ojs.E034"),
        ("CELLS", {"other": "https://"}, "ojs.E032"),
        ("CODEC_SERVER_TOKEN_FOR", "nope.nope", "ojs.E037"),
        ("CODEC_SERVER_TOKEN_FOR", "jobs.conf.DAY", "ojs.E037"),
        ("WORKER_PROTOCOLS", [], "ojs.W038"),
        ("WORKER_PROTOCOLS", ["workers.bindings.flare"], "ojs.W038"),
        ("SERVER_TLS_CERTIFICATE", "/nope", "ojs.W039"),
        ("AGQ", {"TLS_KEY": "/nope"}, "ojs.W039"),
        ("ENQUEUE_MIDDLEWARE", ["jobs.middleware.RestoreContext"], "ojs.E005"),
        ("ENQUEUE_MIDDLEWARE", ["jobs.codecs.Decode"], "ojs.E005"),
        ("EXECUTION_MIDDLEWARE", ["jobs.middleware.ContextMiddleware"], "ojs.E005"),
        ("CLOUDEVENTS_TRIGGERS", [TRIGGER | {"job_type": "Bad Type"}], "ojs.E026"),
        ("CLOUDEVENTS_TRIGGERS", [TRIGGER | {"queue": "No Such"}], "ojs.E026"),
        ("CLOUDEVENTS_TRIGGERS", [TRIGGER | {"options": {"priority": "high"}}], "ojs.E026"),
        ("CLOUDEVENTS_TRIGGERS", [TRIGGER | {"options": "high"}], "ojs.E026"),
    ],
)
def test_a_value_that_cannot_work_is_an_error(settings, option, value, check):
    settings.OJS = {option: value}

    (message,) = check_settings()

    assert message.id == check
    assert option in message.msg


def test_the_server_does_not_listen_on_another_port_than_the_one_given():
    with pytest.raises(CommandError, match="from 0 to 65535, not 99999"):
        call_command("runhttp", "--port", "99999")


PROTOCOL = WorkerProtocol(name="drum", title="Drum")
SERVED = Server(factory="x.Server", schemes=("a", "b"))


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (None, "it has no PROTOCOL"),
        ("drum", "its PROTOCOL is no jobs.protocols.WorkerProtocol"),
        (replace(PROTOCOL, name="Drum"), "the name 'Drum' must match"),
        (replace(PROTOCOL, name="agq"), "the name 'agq' is taken by another package"),
        (replace(PROTOCOL, server=SERVED), "its server needs the options HOST, PORT, URL"),
        (replace(PROTOCOL, name="metrics", options=Settings), "OJS_METRICS would be taken for"),
        (replace(PROTOCOL, name="max", options=Settings), "OJS_MAX_BODY_SIZE would be taken for"),
    ],
)
def test_a_package_that_declares_no_usable_protocol_is_named(settings, monkeypatch, declared, why):
    package = types.ModuleType("drum")
    if declared is not None:
        package.PROTOCOL = declared
    monkeypatch.setitem(sys.modules, "drum", package)
    settings.OJS = {"WORKER_PROTOCOLS": [*DEFAULT_PACKAGES, "drum"]}

    (message,) = check_settings()

    assert message.id == "ojs.E002"
    assert why in message.msg


@pytest.mark.parametrize("listed", [["no.such.package"], [7], "workers.bindings.ojs"])
def test_a_list_of_protocols_that_cannot_be_loaded_is_an_error_and_urls_go_on_working(
    settings, listed
):
    settings.OJS = {"WORKER_PROTOCOLS": listed}
    clear_url_caches()

    (message,) = check_settings()

    assert message.id == "ojs.E002"
    assert "WORKER_PROTOCOLS" in message.msg
    assert [protocol.name for protocol in protocols()] == ["ojs", "flare", "agq", "rota"]


def test_options_that_are_no_dictionary_are_an_error_and_no_traceback(settings):
    settings.OJS = ["HEARTBEAT_TIMEOUT"]

    (message,) = check_settings()

    assert message.id == "ojs.E002"


@pytest.mark.django_db  # Django 6 queries SQLite for JSON support
def test_the_command_tells_of_it_like_of_any_other_error(settings):
    """All checks run, including those of URLs, which access every view."""
    settings.OJS = {"HEARTBEAT_TIMEOUT": "abc"}
    clear_url_caches()

    with pytest.raises(SystemCheckError, match=r"ojs\.E002.*HEARTBEAT_TIMEOUT"):
        call_command("check")


def test_the_command_that_shows_the_options_says_in_one_line_which_cannot_be_read(settings):
    settings.OJS = {"HEARTBEAT_TIMEOUT": "abc"}

    with pytest.raises(CommandError, match=r'^OJS\["HEARTBEAT_TIMEOUT"\] must be a number'):
        call_command("ojsconfig")


def test_middleware_of_a_site_goes_into_either_chain_and_triggers_may_have_options(settings):
    settings.OJS = {
        "ENQUEUE_MIDDLEWARE": ["tests.jobs.test_middleware.Mark"],
        "EXECUTION_MIDDLEWARE": ["tests.jobs.test_middleware.Mark"],
        "CLOUDEVENTS_TRIGGERS": [TRIGGER | {"queue": "mail", "options": {"priority": 1}}],
    }

    assert complaints() == []


def test_a_list_that_is_text_is_refused_with_how_to_write_it(settings):
    """From an environment variable it comes as text where it is not JSON."""
    settings.OJS = {"OUTBOUND_NETWORKS": "127.0.0.0/8"}

    (message,) = check_settings()

    assert 'an environment variable takes it as JSON: ["…"]' in message.msg


@pytest.mark.parametrize(
    ("option", "identifier"),
    [("ALLOW_ANONYMOUS", "ojs.E003"), ("CONFORMANCE_MODE", "ojs.E004")],
)
def test_what_opens_the_server_is_refused_in_production(settings, option, identifier):
    settings.OJS = {option: True}
    assert complaints() == []

    settings.DEBUG = False
    assert complaints() == [identifier]


def test_a_heartbeat_timeout_without_a_margin_is_warned_about(settings):
    """Worker protocol §10.3: at least three intervals."""
    settings.OJS = {"HEARTBEAT_INTERVAL": 10, "HEARTBEAT_TIMEOUT": 30}
    assert complaints() == []

    settings.OJS = {"HEARTBEAT_INTERVAL": 10, "HEARTBEAT_TIMEOUT": 29}
    assert complaints() == ["ojs.W002"]


def test_a_grace_period_longer_than_reservations_is_warned_about(settings):
    settings.OJS = {"GRACE_PERIOD": 60, "VISIBILITY_TIMEOUT": 59}

    assert complaints() == ["ojs.W005"]


def test_moments_without_a_time_zone_are_refused(settings):
    settings.USE_TZ = False

    (message,) = check_settings()

    assert (message.id, message.is_serious()) == ("ojs.E020", True)
    assert "deadline" in message.msg


@pytest.fixture
def vendor(monkeypatch):
    """Pretend that the jobs' database is a different one."""

    def be(name: str) -> None:
        monkeypatch.setattr(type(connections[alias()]), "vendor", name)

    return be


@pytest.mark.parametrize("name", ["mysql", "oracle", "cockroachdb"])
def test_a_database_that_recovery_cannot_rely_on_is_refused(vendor, name):
    vendor(name)

    (message,) = check_settings()

    assert (message.id, message.is_serious()) == ("ojs.E021", True)
    assert name in message.msg and "PostgreSQL" in message.msg


def test_a_site_without_a_database_is_not_refused(vendor):
    vendor("unknown")

    assert complaints() == []


class Replicas:
    """Reads everything from a different database than it writes to."""

    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"


class Apart:
    """Routes the jobs, but not the workers."""

    def db_for_write(self, model, **hints):
        return "default" if model._meta.app_label == "ojs_jobs" else "elsewhere"

    db_for_read = db_for_write


@pytest.mark.parametrize(
    ("router", "stray"), [(Replicas, "read from 'replica'"), (Apart, "from 'elsewhere'")]
)
def test_a_router_that_tears_the_tables_apart_is_refused(settings, router, stray):
    settings.DATABASE_ROUTERS = [router()]

    (message,) = check_settings()

    assert (message.id, message.is_serious()) == ("ojs.E022", True)
    assert stray in message.msg
    assert "db_for_read" in message.hint


@pytest.mark.django_db
def test_the_test_database_is_one_the_server_is_happy_with():
    assert check_database(databases=[alias()]) == []
    assert check_database(databases=None) == []


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite's own options")
def test_sqlite_without_immediate_transactions_is_warned_about():
    options = connection.settings_dict["OPTIONS"]
    mode = options.pop("transaction_mode")
    try:
        assert [message.id for message in check_database(databases=["default"])] == ["ojs.W006"]
    finally:
        options["transaction_mode"] = mode


def test_each_id_of_a_check_says_one_thing():
    """A site silences a check by its id."""
    places: dict[str, set[str]] = {}
    for file in (*ROOT.glob("jobs/**/*.py"), *ROOT.glob("workers/**/*.py")):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef):
                for found in re.findall(r"'(ojs\.[EW]\d{3})'", ast.unparse(function)):
                    places.setdefault(found, set()).add(f"{file.name}: {function.name}")

    assert len(places) > 20
    assert {id: found for id, found in places.items() if len(found) > 1} == {}
