"""A third-party protocol (`tests.drum`): one line of settings adds it."""

from __future__ import annotations

import io
import json
import socket
import urllib.request

import pytest
from django.contrib.admin.utils import quote
from django.core.management import call_command
from django.urls import reverse
from websockets.sync.client import connect

from jobs.checks import check_settings
from jobs.http.authentication import make_key
from jobs.models import Job, OperatorAction
from jobs.protocols import DEFAULT_PACKAGES
from tests import operators, processes
from tests.conftest import url_of_test_database
from tests.ojs_client import OJSClient
from tests.processes import eventually
from workers.chores import reaper
from workers.models import Directive, Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PROTOCOLS = [*DEFAULT_PACKAGES, "tests.drum"]
WORKER = "ojs_workers_worker"


@pytest.fixture(scope="module")
def environment(django_db_setup):
    return processes.environment(
        url_of_test_database(),
        ALLOW_ANONYMOUS=1,
        WORKER_PROTOCOLS=json.dumps(PROTOCOLS),
        DRUM_PORT=processes.free_port(),
    )


@pytest.fixture(scope="module")
def drum(environment, tmp_path_factory):
    """Its server, started by `runprotocol`."""
    folder = tmp_path_factory.mktemp("drum")
    with processes.manage(folder, environment, "runprotocol", "drum") as process:
        process.wait_for("Drum workers are served on")
        yield int(environment["OJS_DRUM_PORT"])
        assert process.process.poll() is None, process.output
        assert "Traceback" not in process.output, process.output


@pytest.fixture
def say(drum, settings, transactional_db):
    """Returns a function that sends a worker's line and returns the answer."""
    settings.OJS = {"ALLOW_ANONYMOUS": True, "WORKER_PROTOCOLS": PROTOCOLS}
    with socket.create_connection(("127.0.0.1", drum), processes.PATIENCE) as connection:
        lines = connection.makefile("rw")

        def send(*words):
            lines.write(f"{' '.join(words)}\n")
            lines.flush()
            return lines.readline().strip()

        assert send("join", "ringo", "default") == "joined"
        yield send


def test_its_workers_run_the_jobs_of_others_and_are_counted(say):
    job_id = OJSClient().pushed()

    assert say("next", "ringo", "default") == job_id
    assert say("done", "ringo", job_id) == "completed"

    assert Job.objects.get().finished_by == "ringo"
    metrics = OJSClient().see("metrics").content.decode()
    assert "ojs_workers_active 1.0" in metrics
    assert 'ojs_job_completed_total{queue="default",type="email.send"} 1.0' in metrics


def test_the_manifest_says_where_it_is_served(say, drum):
    def manifest():
        return OJSClient().get("/ojs/manifest").json()

    eventually(lambda: "drum" in manifest()["protocols"])
    assert manifest()["endpoints"]["drum"] == f"drum://127.0.0.1:{drum}"


def test_an_order_is_relayed_in_the_words_that_it_declares(say):
    ops = operators.operator()

    operators.confirm(ops, WORKER, "quiet", Worker.objects.get())
    assert say("beat", "ringo") == "quiet"
    reaper.sweep()

    assert Directive.objects.get().answer == "relayed"
    page = ops.get(reverse(f"admin:{WORKER}_order", args=[OperatorAction.objects.get().pk]))
    assert page.context["words"] == "0 of 1 report “quiet”, relayed to 1 that report no state"


def test_the_page_of_a_worker_says_what_it_speaks_and_hears(say):
    ops = operators.operator()

    page = ops.get(reverse(f"admin:{WORKER}_change", args=[quote("ringo")])).content.decode()
    found = ops.get(operators.list_of(WORKER), {"protocol": "drum"})

    assert ">Drum<" in page
    assert "at its next heartbeat" in page
    assert [worker.pk for worker in found.context["cl"].result_list] == ["ringo"]
    assert "Drum" in found.content.decode()


def test_its_endpoints_are_served_and_guarded_by_its_own_rows(say, environment, tmp_path):
    with processes.server(tmp_path, environment) as api:
        assert api.call("GET", "/drum/v1/workers") == (200, {"workers": ["ringo"]})

        guarded = environment | {"OJS_ALLOW_ANONYMOUS": "0"}
        with processes.server(tmp_path, guarded) as other:
            assert other.call("GET", "/drum/v1/workers")[0] == 401
            record, key = make_key("bandleader", scopes=["operate"])
            asked = urllib.request.Request(
                f"{other.url}/drum/v1/workers", headers={"Authorization": f"Bearer {key}"}
            )
            with urllib.request.urlopen(asked, timeout=processes.PATIENCE) as reply:
                assert reply.status == 200
            record.refresh_from_db()
            assert record.last_used_protocol == "drum"


def test_its_websocket_is_served_by_the_asgi_server(say, environment, tmp_path):
    with processes.front_door(tmp_path, environment) as process:
        with connect(f"ws://127.0.0.1:{process.port}/drum", proxy=None) as line:
            line.send("beat ringo")
            assert line.recv(processes.PATIENCE) == "running"
        _, found = processes.Api(f"http://127.0.0.1:{process.port}").call("GET", "/ojs/manifest")

    assert {"drum", "rota"} <= set(found["protocols"])


def printed(command):
    out = io.StringIO()
    call_command(command, stdout=out)
    return out.getvalue()


def test_commands_know_its_options_and_its_rows(settings):
    settings.OJS = {"WORKER_PROTOCOLS": PROTOCOLS, "DRUM": {"PORT": 7}}

    assert 'DRUM["PORT"] = 7' in printed("ojsconfig")
    assert "### Drum" in printed("authorization")


def test_a_mistake_in_its_options_is_found_by_the_check(settings):
    settings.DEBUG = True
    settings.OJS = {"WORKER_PROTOCOLS": PROTOCOLS, "DRUM": {"PROT": 7}}

    (message,) = check_settings()

    assert (message.id, message.hint) == ("ojs.E001", "Did you mean 'PORT'?")
    assert "OJS['DRUM']['PROT']" in message.msg


def test_without_the_line_of_settings_nothing_knows_it(environment, tmp_path):
    unlisted = environment | {"OJS_WORKER_PROTOCOLS": json.dumps(list(DEFAULT_PACKAGES))}

    with processes.manage(tmp_path, unlisted, "runprotocol", "drum") as process:
        assert process.wait() == 2

    assert "invalid choice: 'drum'" in process.output
