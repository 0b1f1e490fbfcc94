"""Every block of code in the documentation runs, or says before it where it does or why not.

A comment before a block says so: `<!-- run in tests/… -->` names the test that runs it, and
`<!-- not run: … -->` gives the reason. The rest runs here: Python in a namespace with what a page
takes for granted, one after another; requests of `curl` to a server; of other commands the
arguments are read by their programs.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from urllib.parse import urlsplit

import pytest
import yaml
from django.conf import settings as django_settings
from django.core.management import CommandError
from django.urls import include, path
from django.utils.module_loading import import_string

import jobs
from jobs import crontab, testing
from jobs.backends import OJSBackend, Task
from jobs.conf import ojs_settings
from jobs.errors import OJSError
from jobs.http.authentication import make_key
from jobs.models import Job, Queue
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago
from tests.ojs_client import OJSClient
from tests.once import once_is_enough
from tests.processes import free_port
from workers.alerts import evaluation
from workers.models import AlertNotification, AlertRule
from workers.runtime import handler, handlers

from . import shell
from .pages import PAGES, ROOT, Block, blocks

pytestmark = [once_is_enough, pytest.mark.django_db]

IN_TESTS_OF_THEIR_OWN = {
    "docs/tutorial.md": "tests/test_packaging.py",
    **{
        str(page.relative_to(ROOT)): "tests/docs/test_coming_from.py"
        for page in PAGES
        if page.parent.name == "coming-from"
    },
}
"""Pages that are run as a whole."""
SHELLS = ("sh", "bash")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_here(page: Path) -> list[Block]:
    if name_of(page) in IN_TESTS_OF_THEIR_OWN:
        return []
    return [
        block
        for block in blocks(page)
        if block.is_run and not block.run_in and not block.language.startswith("{")
    ]


def with_blocks(*languages: str) -> Any:
    found = [page for page in PAGES if any(one.language in languages for one in run_here(page))]
    return pytest.mark.parametrize("page", found, ids=name_of)


# Which test runs what


def test_every_block_is_in_a_language_that_a_test_runs():
    known = {*SHELLS, "python", "json", "yaml", "nginx", "text"}

    strange = [
        f"{name_of(page)}: {block.language or 'no language'}: {block.text}"
        for page in PAGES
        for block in run_here(page)
        if block.language not in known
    ]

    assert strange == []


def test_every_text_is_checked():
    found = {page.stem: block.text.strip() for page in PAGES for block in of(page, "text")}

    assert found.keys() == {"django", "metrics"}
    with pytest.raises(OJSError) as refused:
        jobs.enqueue("order.confirm", [{"price": Decimal(1)}])
    assert str(refused.value) == found["django"]
    # A formula in words.
    assert found["metrics"].startswith("wanted_concurrency = max(active,")


def test_a_test_that_is_named_reads_the_page():
    for page in PAGES:
        for test in {block.run_in for block in blocks(page)} - {""}:
            assert page.name in (ROOT / test).read_text(), f"{test} does not read {page.name}"
    for name, test in IN_TESTS_OF_THEIR_OWN.items():
        text = (ROOT / test).read_text()
        assert Path(name).name in text or Path(name).parent.name in text


def of(page: Path, *languages: str) -> list[Block]:
    return [block for block in run_here(page) if block.language in languages]


# Commands


@with_blocks(*SHELLS)
def test_the_programs_of_the_page_accept_its_commands(page):
    for block in of(page, *SHELLS):
        for words in shell.commands(block.text):
            if words[0] != "curl":
                shell.accept(words)


class Curl:
    """What the examples use of curl, against the server in this process."""

    def __init__(self, key: str) -> None:
        self.client = OJSClient(key)
        self.parser = argparse.ArgumentParser(exit_on_error=False)
        self.parser.add_argument("-X", dest="method")
        self.parser.add_argument("-H", dest="headers", action="append", default=[])
        self.parser.add_argument("-d", dest="body")
        self.parser.add_argument("url")

    def __call__(self, words: list[str]) -> Any:
        given = self.parser.parse_args(words[1:])
        url = urlsplit(given.url)
        method = given.method or ("POST" if given.body else "GET")
        headers = dict(header.split(": ", 1) for header in given.headers)
        headers.pop("Authorization", None)
        reply = self.client.generic(
            method,
            f"{url.path}?{url.query}",
            (given.body or "").encode(),
            content_type=headers.get("Content-Type", "application/json"),
        )
        assert reply.status_code < 300, f"{words}: {reply.content!r}"
        return reply


@pytest.fixture
def curl() -> Curl:
    scopes = ["produce", "operate", "observe", "ojs:admin:read", "ojs:admin:write"]
    return Curl(make_key("docs", scopes=scopes)[1])


SHORT = {"…": "-H 'Content-Type: application/json'", "{…}": '{"queue": "billing"}'}


def written_out(text: str) -> str:
    """A block whose repetitions are left out as `…`."""
    text = text.replace("{…}", SHORT["{…}"])
    return text.replace(" … ", f" {SHORT['…']} ")


def requests_of(page: Path) -> list[list[str]]:
    return [
        words
        for block in of(page, *SHELLS)
        for words in shell.commands(written_out(block.text))
        if words[0] == "curl"
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if requests_of(page)], ids=name_of)
def test_the_requests_of_the_page_are_answered(page, curl):
    for words in requests_of(page):
        # Each finds what it is about as if it were the first.
        QueueFactory(name="email", paused="resume" in " ".join(words))
        heard = ago(3600) if "DELETE" in words else ago(1)
        worker = WorkerFactory(labels=["blue"], queues=["email"], last_heartbeat_at=heard)
        is_dead = any("dead-letter" in word or word.endswith("$ID/retry") for word in words)
        known = {
            "$API": "/ojs/v1",
            "$SERVER": "",
            "$ID": str(JobFactory(dead=is_dead).pk),
            "$WORKER": worker.pk,
        }
        for name, value in known.items():
            words = [word.replace(name, value) for word in words]
        curl(words)
        Queue.objects.all().delete()


# Python


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before, declared = set(handlers.known()), dict(crontab._declared)
    yield
    for type in set(handlers.known()) - before:
        handlers.forget(type)
    crontab._declared.clear()
    crontab._declared.update(declared)


@pytest.fixture
def tasks(settings: Any, monkeypatch: Any) -> None:
    """The framework under its name in Django 6, with our backend."""
    framework = sys.modules[Task.__module__.partition(".base")[0]]
    monkeypatch.setitem(sys.modules, "django.tasks", framework)
    settings.TASKS = {"default": {"BACKEND": "jobs.backends.OJSBackend", "QUEUES": []}}


class Throttled(Exception):
    retry_after = 5


def sign_up(address: str) -> None:
    jobs.enqueue("email.send", [address], queue="mail")
    jobs.enqueue("reminder.send", [address], scheduled_at=timedelta(hours=24))


def granted(page: str) -> dict[str, Any]:
    """What the blocks of a page take for granted: names of the site, and imports."""
    names: dict[str, Any] = {
        "Order": SimpleNamespace(objects=SimpleNamespace(create=lambda *_: SimpleNamespace(pk=7))),
        "TestCase": TestCase,
        "Throttled": Throttled,
        "NoSuchMailbox": type("NoSuchMailbox", (Exception,), {}),
        "MaintenanceWindow": type("MaintenanceWindow", (Exception,), {}),
        "context": SimpleNamespace(is_last_attempt=False),
        "deliver": lambda *_: None,
        "handler": handler,
        "include": include,
        "jobs": jobs,
        "orders": [1, 2],
        "path": path,
        "sign_up": sign_up,
        "time": time,
        "timedelta": timedelta,
        "INSTALLED_APPS": [],
        "urlpatterns": [],
    }
    if page == "docs/workflows.md":
        names["order"] = 7
        for name in ("clean", "send", "report", "alarm", "charge", "refund"):
            names[name] = handler(f"docs.{name}")(lambda context, pk=0: None)
    if page in ("docs/workflows.md", "docs/scheduling.md"):
        task = sys.modules["django.tasks"].task
        names["task"] = task
        names["load_warehouse"] = task(a_task)
    if page == "docs/django.md":
        for kind in ("email.send", "reminder.send"):
            handler(kind)(lambda context, address: None)
        names["report_id"] = jobs.enqueue("report.build", [2025]).id
    if page in ("README.md", "docs/django.md"):
        handler("report.build")(lambda context, year: {"year": year})
    return names


def a_task(year: int) -> None:
    """A task must be a function of a module."""


def no_mail_is_sent_to_employees(names: dict[str, Any]) -> None:
    middleware = names["no_mail_to_employees"]
    mail = {"type": "email.send", "args": ["ann@example.com"]}
    assert middleware(mail, lambda job: job) is None
    assert middleware(mail | {"args": ["ann@example.org"]}, lambda job: job)
    lines: list[Any] = []
    context = SimpleNamespace(log=lambda *words: lines.append(words))
    assert names["Timed"]()(context, lambda: 7) == 7
    assert lines


def the_tests_of_the_page_pass(names: dict[str, Any]) -> None:
    Job.objects.all().delete()
    names["SignUpTests"]("test_reminder").test_reminder()


AFTERWARDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "no_mail_to_employees": no_mail_is_sent_to_employees,
    "SignUpTests": the_tests_of_the_page_pass,
}
"""What is tried once a block has defined a name."""


@with_blocks("python")
def test_the_python_of_the_page_runs(page, settings, tasks):
    names = granted(name_of(page))

    for block in of(page, "python"):
        text = block.text.replace('"https://…"', '""')
        defined = set()
        for statement in ast.parse(text).body:
            if "wait(" in ast.unparse(statement):
                testing.run_jobs()
            code = ast.Module([statement], [])
            before = dict(names)
            exec(compile(code, name_of(page), "exec"), names)
            defined |= {name for name in names if names[name] is not before.get(name)}
        hold_settings(names, defined, settings)
        for name in defined & AFTERWARDS.keys():
            AFTERWARDS[name](names)


def hold_settings(names: dict[str, Any], defined: set[str], settings: Any) -> None:
    """Use the settings that a block shows: what they name exists, and no option is unknown."""
    if "OJS" in defined:
        settings.OJS = names["OJS"]
        assert ojs_settings.HEARTBEAT_TIMEOUT
        crontab.of_settings()
        for option in ("ENQUEUE_MIDDLEWARE", "EXECUTION_MIDDLEWARE"):
            for dotted in names["OJS"].get(option, ()):
                import_string(dotted)
    if "MIDDLEWARE" in defined:
        for dotted in names["MIDDLEWARE"]:
            assert dotted is ... or import_string(dotted)
    if "INSTALLED_APPS" in defined:
        assert set(names["INSTALLED_APPS"]) <= set(django_settings.INSTALLED_APPS)
    if "LOGGING" in defined:
        for formatter in names["LOGGING"]["formatters"].values():
            assert import_string(formatter["()"])
    if "TASKS" in defined:
        for alias, parameters in names["TASKS"].items():
            assert import_string(parameters["BACKEND"]) is OJSBackend
            found = {problem.id for problem in OJSBackend(alias, parameters).check()}
            # The task is the reader's.
            assert found <= {"ojs.E013"}


# Documents


def test_the_answer_about_autoscaling_has_the_members_of_the_page(curl):
    (shown,) = (json.loads(block.text) for block in of(ROOT / "docs" / "metrics.md", "json"))
    names = [one["queue"] for one in shown["queues"]]

    found = curl(["curl", f"/ojs/v1/autoscaling?queues={','.join(names)}"]).json()

    assert found.keys() == shown.keys()
    assert [one.keys() for one in found["queues"]] == [one.keys() for one in shown["queues"]]
    assert shown["wanted_workers"] == sum(one["wanted_workers"] for one in shown["queues"])


def test_a_worker_registers_with_the_versions_of_the_page(api):
    (document,) = (json.loads(block.text) for block in of(ROOT / "docs" / "versioning.md", "json"))

    reply = api.send("workers/register", document)

    assert reply.status_code < 300, reply.content


@pytest.mark.django_db
def test_a_notification_has_the_members_of_the_page(settings):
    settings.OJS = {"SITE_URL": "https://jobs.example.com"}
    (shown,) = (json.loads(block.text) for block in of(ROOT / "docs" / "alerts.md", "json"))
    JobFactory(queue="mail", enqueued_at=ago(60))
    QueueFactory(name="mail")
    rule = AlertRule.objects.create(
        name="No worker", kind="unserved_queues", job_type="report.build"
    )

    evaluation.evaluate()
    (found,) = AlertNotification.objects.filter(rule=rule).values_list("document", flat=True)

    assert {*found, "id"} == shown.keys()
    assert found["rule"].keys() == shown["rule"].keys()
    assert [one.keys() for one in found["alerts"]] == [one.keys() for one in shown["alerts"]]
    assert (found["title"], found["rule"]["kind"]) == (shown["title"], shown["rule"]["kind"])


def test_arguments_that_do_not_match_are_refused_as_on_the_page(api):
    page = ROOT / "docs" / "extensions" / "schema-registry.md"
    (shown,) = (json.loads(block.text) for block in of(page, "json"))
    register, *_ = of(page, "python")
    exec(register.text, {})

    reply = api.send(
        "jobs", {"type": "invoice.generate", "args": [{"customer_id": "c", "amount": "1"}]}
    )

    refusal = reply.json()["error"]
    assert refusal["code"] == shown["error"]["code"]
    assert refusal["message"] == shown["error"]["message"]
    assert shown["error"]["details"].items() <= refusal["details"].items()


def test_the_history_of_the_page_is_what_the_server_answers():
    page = ROOT / "docs" / "extensions" / "execution-history.md"
    (shown,) = (json.loads(block.text) for block in of(page, "json"))
    client = OJSClient(make_key("docs", scopes=["produce", "work"])[1])
    job_id = client.pushed(queue="email", args=["user@example.com", "welcome"])
    client.fetch("email", worker_id="worker-1")

    found = client.see(f"jobs/{job_id}/history").json()

    changing = ("id", "job_id", "timestamp", "next_cursor")
    for entry in (*shown["events"], *found["events"]):
        assert set(changing[:3]) <= entry.keys()
        for name in changing:
            entry.pop(name, None)
    assert found == shown


def test_every_document_is_tried():
    found = {page.stem for page in PAGES if of(page, "json", "yaml", "nginx")}

    assert found == {
        *("alerts", "metrics", "schema-registry", "execution-history"),
        *("versioning", "deploy", "README"),
    }


def test_the_values_of_the_page_are_those_of_the_chart():
    (block,) = of(ROOT / "docs" / "deploy.md", "yaml")
    chart = yaml.safe_load((ROOT / "deploy/helm/django-ojs/values.yaml").read_text())
    given = yaml.safe_load(block.text)

    for name, value in given.items():
        assert name in chart
        if isinstance(value, dict) and name != "workers":
            assert value.keys() <= chart[name].keys(), name
    for worker in given["workers"].values():
        assert worker.keys() <= chart["worker"].keys()


def test_prometheus_and_keda_ask_for_what_there_is(curl):
    scrape, keda, hpa = (list(yaml.safe_load_all(block.text)) for block in metrics_yaml())
    (trigger,) = keda[1]["spec"]["triggers"]
    (metric,) = hpa[0]["metrics"]

    exported = curl(["curl", scrape[0]["scrape_configs"][0]["metrics_path"]]).content.decode()
    scaled = curl(["curl", trigger["metadata"]["url"]]).json()

    assert f"# TYPE {metric['external']['metric']['name']} " in exported
    assert trigger["metadata"]["valueLocation"] in scaled
    assert trigger["authenticationRef"]["name"] == keda[0]["metadata"]["name"]


def metrics_yaml() -> list[Block]:
    return of(ROOT / "docs" / "metrics.md", "yaml")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_takes_the_configuration(tmp_path):
    (block,) = of(ROOT / "README.md", "nginx")
    text = block.text.replace("listen 80;", f"listen 127.0.0.1:{free_port()};")
    file = tmp_path / "nginx.conf"
    file.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{text}\n}}\n")

    done = subprocess.run(
        ["nginx", "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_the_readers_of_blocks_see_mistakes():
    assert list(shell.commands("A=1 make run  # now\nX=$(pip install 'a b') && cd y | z")) == [
        ["make", "run"],
        ["pip", "install", "a b"],
        ["cd", "y"],
        ["z"],
    ]
    for wrong in (
        "make nothing",
        "manage.py fleet drain --labell blue",
        "pip install 'django-ojs[nothing]'",
        "python -m tests.nothing",
        "nothing",
        "make bench ARGS='--nothing'",
    ):
        with pytest.raises((AssertionError, SystemExit, CommandError)):
            shell.accept(shlex.split(wrong))
