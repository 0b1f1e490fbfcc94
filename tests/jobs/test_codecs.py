"""Codecs: what is encoded before it is stored, and who reads it again (OJS encryption)."""

from __future__ import annotations

import base64
import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import storages
from django.urls import reverse

import jobs
from jobs import codecs, testing
from jobs import schemas as registry
from jobs.errors import DuplicateJob, InvalidRequest
from jobs.http.authentication import make_key
from jobs.models import Job, JobError, OperatorAction
from jobs.payloads import chain, server
from jobs.payloads.codecs import Encryption, Gzip, Payload
from tests.factories import ago
from tests.ojs_client import OJSClient
from tests.once import once_is_enough
from tests.operators import staff
from tests.shop import TASKS
from workers.runtime import handlers
from workers.runtime.client import LocalClient
from workers.runtime.options import Options
from workers.runtime.process import WorkerProcess

pytestmark = pytest.mark.django_db

SECRET = "4111-1111-1111-1111"
HERE = "tests.jobs.test_codecs"
OLD, NEW = b"o" * 32, b"n" * 32
KEYS = {"new": NEW, "old": OLD}
TOKEN = "letmein"


def keys() -> dict[str, bytes]:
    return dict(KEYS)


def only_old() -> dict[str, bytes]:
    return {"old": OLD}


def only_new() -> dict[str, bytes]:
    return {"new": NEW}


@pytest.fixture(autouse=True)
def encrypting(settings):
    settings.OJS = settings.OJS | {
        "ENQUEUE_MIDDLEWARE": ["jobs.codecs.Encode"],
        "EXECUTION_MIDDLEWARE": ["jobs.codecs.Decode"],
        "CODEC_KEYS": f"{HERE}.keys",
    }


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    """The arguments that handlers got."""
    found: list[Any] = []

    @handlers.handler("pay.charge")
    def charge(context: Any, card: Any, *rest: Any) -> Any:
        found.append(card)
        done = context.step("authorize", lambda: {"authorized": card})
        context.log("Charging.")
        if context.attempt == 1:
            raise ValueError(f"{card} was declined")
        return {"charged": done["authorized"]}

    @handlers.handler("pay.thank")
    def thank(context: Any, *args: Any) -> Any:
        found.append((list(args), context.parent_results, context.job["args"]))

    yield found
    for kind in ("pay.charge", "pay.thank"):
        handlers.forget(kind)


class CodecServer(ThreadingHTTPServer):
    """Decodes for the right token, as a codec server anywhere would."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[Any] = []


class _Handler(BaseHTTPRequestHandler):
    server: CodecServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        is_allowed = self.headers["Authorization"] == f"Bearer {TOKEN}"
        found = [server.decoded(each, "") for each in body["payloads"]] if is_allowed else []
        text = json.dumps({"payloads": found}).encode()
        self.send_response(200 if is_allowed else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def codec_server(settings) -> Iterator[CodecServer]:
    with CodecServer() as started:
        thread = threading.Thread(target=started.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{started.server_address[1]}"
        settings.OJS = settings.OJS | {
            "CODEC_SERVER_URL": address,
            "CODEC_SERVER_TOKEN": TOKEN,
        }
        yield started
        started.shutdown()
        thread.join()


def everything_stored() -> str:
    """All rows of both apps as text."""
    models = [
        model
        for label in ("ojs_jobs", "ojs_workers")
        for model in apps.get_app_config(label).get_models()
    ]
    return repr([list(model._base_manager.values()) for model in models])


def work(queue: str = "default") -> None:
    Job.objects.filter(state="retryable").update(scheduled_at=ago(1))
    WorkerProcess(LocalClient("w"), Options(queues=[queue], burst=True)).run()


@pytest.mark.django_db(transaction=True)
def test_a_secret_is_in_no_column_no_log_and_no_page_but_that_of_the_codec_server(
    seen, codec_server, caplog
):
    caplog.set_level(logging.DEBUG)
    job = jobs.enqueue("pay.charge", [SECRET], retry={"initial_interval": "PT1S"})
    work()
    row = Job.objects.get()
    assert row.state == "retryable"
    work()
    row.refresh_from_db()

    assert seen == [SECRET, SECRET]
    assert row.state == "completed"
    assert jobs.get(job.id).result == {"charged": SECRET}
    assert jobs.get(job.id).args == [SECRET]
    assert row.meta["ojs.codec.encodings"] == ["binary/encrypted"]
    assert row.meta["ojs.codec.key_id"] == "new"
    (error,) = JobError.objects.all()
    assert (error.type, error.message, error.backtrace) == ("ValueError", "[encrypted]", None)
    assert SECRET not in everything_stored()
    assert SECRET not in caplog.text

    reader = staff("view_job", "view_event", "view_joberror", username="reader")
    seer = staff("view_job", "view_event", "view_job_args", username="seer")
    page = reverse("admin:ojs_jobs_job_change", args=[job.id])
    clear = reverse("admin:ojs_jobs_job_clear", args=[job.id])
    for client in (reader, seer):
        for address in (page, reverse("admin:ojs_jobs_job_changelist")):
            shown = client.get(address)
            assert shown.status_code == 200
            assert SECRET not in shown.content.decode()
    assert clear not in reader.get(page).content.decode()
    assert clear in seer.get(page).content.decode()
    assert reader.post(clear).status_code == 403
    assert seer.get(clear).status_code == 405
    assert codec_server.asked == []

    shown = seer.post(clear)

    text = shown.content.decode()
    assert text.count(SECRET) >= 3, "arguments, result and error"
    assert "was declined" in text
    assert "no-store" in shown["Cache-Control"]
    assert [path for path, _ in codec_server.asked] == ["/codec/decode"]
    assert [action.verb for action in OperatorAction.objects.all()] == ["view_job_args"]
    assert SECRET not in everything_stored()


@pytest.fixture
def heard(settings) -> Iterator[list[Any]]:
    """Results of tasks, as receivers of `task_finished` see them."""
    settings.TASKS = TASKS
    from jobs.backends import task_finished

    found: list[Any] = []

    def hear(task_result: Any, **kwargs: Any) -> None:
        found.append(task_result)

    task_finished.connect(hear)
    yield found
    task_finished.disconnect(hear)


@pytest.mark.django_db(transaction=True)
def test_a_task_and_its_monitor_see_errors_and_results_in_clear(heard):
    """And so does the next attempt, of the one before it."""
    from tests.shop import tasks

    declined, kept = tasks.decline.enqueue(SECRET), tasks.send_invoice.enqueue(order=42)
    work()
    work()
    work()
    assert SECRET not in everything_stored()

    error, *_ = tasks.decline.get_result(declined.id).errors
    assert error.exception_class_path == "tests.shop.tasks.CardDeclined"
    assert error.traceback.endswith(f"CardDeclined: {SECRET}\n")
    attempts = [result.errors for result in heard if result.id == declined.id]
    assert [len(errors) for errors in attempts] == [1, 2, 3]
    assert {each.traceback[-len(SECRET) :] for errors in attempts for each in errors} == {
        f"{SECRET}\n"[-len(SECRET) :]
    }
    (done,) = (result for result in heard if result.id == kept.id)
    assert done.return_value == tasks.send_invoice.get_result(kept.id).return_value


def test_without_a_codec_server_that_answers_nothing_is_shown(settings, codec_server):
    job = jobs.enqueue("pay.charge", [SECRET])
    seer = staff("view_job", "view_job_args")
    clear = reverse("admin:ojs_jobs_job_clear", args=[job.id])

    settings.OJS = settings.OJS | {"CODEC_SERVER_TOKEN": "wrong"}
    refused = seer.post(clear, follow=True).content.decode()
    settings.OJS = settings.OJS | {"CODEC_SERVER_URL": ""}

    assert "401" in refused and SECRET not in refused
    assert not OperatorAction.objects.exists()
    assert seer.post(clear).status_code == 403


def token_of(user: Any) -> str:
    return TOKEN if user.username == "ann" else "nothing"


def test_each_user_of_the_admin_may_have_a_token_of_their_own(settings, codec_server):
    job = jobs.enqueue("pay.charge", [SECRET])
    settings.OJS = settings.OJS | {"CODEC_SERVER_TOKEN_FOR": f"{HERE}.token_of"}
    clear = reverse("admin:ojs_jobs_job_clear", args=[job.id])

    pages = [
        staff("view_job", "view_job_args", username=name).post(clear, follow=True).content.decode()
        for name in ("ann", "bob")
    ]

    assert [SECRET in page for page in pages] == [True, False]


@pytest.mark.django_db(transaction=True)
def test_steps_of_a_workflow_get_clear_results_of_those_before(seen):
    handle = jobs.chain(
        jobs.job("pay.charge", [SECRET], retry={"initial_interval": "PT1S"}),
        jobs.job("pay.thank", ["ann"]),
    ).enqueue()
    assert SECRET not in everything_stored()

    work()
    work()

    assert seen[-1] == (["ann"], [{"charged": SECRET}], ["ann"])
    assert handle.results()[0] == {"charged": SECRET}
    assert SECRET not in everything_stored()


def test_a_unique_key_is_that_of_the_clear_arguments(settings):
    unique = {"keys": ["type", "args"]}
    encoded = jobs.enqueue("pay.charge", [SECRET], unique=unique)
    with pytest.raises(DuplicateJob):
        jobs.enqueue("pay.charge", [SECRET], unique=unique)
    settings.OJS = settings.OJS | {"ENQUEUE_MIDDLEWARE": []}

    with pytest.raises(DuplicateJob) as refused:
        jobs.enqueue("pay.charge", [SECRET], unique=unique)

    assert refused.value.details["existing_job_id"] == str(encoded.id)


def test_a_client_that_encrypts_sends_the_key_it_computed(api):
    sealed, meta = chain.seal_args([SECRET])
    unique = {"keys": ["type", "args"], "digest": "ab" * 32}
    first = api.push(args=sealed, meta=meta, options={"unique": unique})
    sealed, meta = chain.seal_args([SECRET])
    second = api.push(args=sealed, meta=meta, options={"unique": unique})

    assert (first.status_code, second.status_code) == (201, 409)
    assert Job.objects.get().unique_key == "ab" * 32


def test_what_is_wrong_is_refused_before_it_is_encoded(settings):
    with pytest.raises(InvalidRequest) as refused:
        jobs.enqueue("pay.charge", [{"at": object()}])
    assert refused.value.details["field"].startswith("args")


def test_a_schema_is_asked_about_the_clear_arguments():
    pytest.importorskip("jsonschema_rs")
    registry.register("pay.charge", "1.0.0", {"type": "array", "items": {"type": "string"}})
    registry.set_mode("strict")

    jobs.enqueue("pay.charge", [SECRET])
    with pytest.raises(InvalidRequest):
        jobs.enqueue("pay.charge", [17])

    assert Job.objects.count() == 1


def test_after_a_rotation_old_jobs_are_read_and_new_ones_have_the_new_key(settings):
    settings.OJS = settings.OJS | {"CODEC_KEYS": f"{HERE}.only_old"}
    old = jobs.enqueue("pay.charge", [SECRET])
    settings.OJS = settings.OJS | {"CODEC_KEYS": f"{HERE}.keys"}
    new = jobs.enqueue("pay.charge", [SECRET])

    assert [job.meta["ojs.codec.key_id"] for job in (old, new)] == ["old", "new"]
    assert jobs.get(old.id).args == jobs.get(new.id).args == [SECRET]
    settings.OJS = settings.OJS | {"CODEC_KEYS": f"{HERE}.only_new"}
    with pytest.raises(codecs.CodecError, match="no key 'old'"):
        _ = jobs.get(old.id).args


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_key_is_gone_fails_and_says_which(seen, settings):
    settings.OJS = settings.OJS | {"CODEC_KEYS": f"{HERE}.only_old"}
    jobs.enqueue("pay.charge", [SECRET])
    settings.OJS = settings.OJS | {"CODEC_KEYS": f"{HERE}.only_new"}

    work()

    assert seen == []
    assert JobError.objects.get().message == "There is no key 'old'."


def test_tests_of_a_site_see_clear_arguments(seen):
    with testing.fake():
        jobs.enqueue("pay.charge", [SECRET])

        testing.assert_enqueued("pay.charge", args=[SECRET])


@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_payload_that_was_changed_is_not_decoded(place):
    sealed = Encryption().encode(Payload(b"[1]"))
    changed = bytearray(sealed.data)
    changed[place] ^= 1

    assert Encryption().decode(sealed).data == b"[1]"
    with pytest.raises(codecs.CodecError):
        Encryption().decode(Payload(bytes(changed), sealed.metadata))


def test_the_form_is_that_of_the_document():
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    args, meta = chain.seal_args([{"a": "x" * 2000}])
    (element,) = args

    assert meta == {
        "ojs.codec.encodings": ["gzip/plain", "binary/encrypted"],
        "ojs.codec.key_id": "new",
    }
    assert element["ojs_encoded"] is True
    assert element["encoding"] == "binary/encrypted+gzip"
    data = base64.b64decode(element["data"])
    assert data[0] == 1
    packed = AESGCM(NEW).decrypt(data[1:13], data[13:], None)
    assert Gzip().decode(Payload(packed)).data == b'[{"a":"' + b"x" * 2000 + b'"}]'
    assert chain.seal_args([1])[1]["ojs.codec.encodings"] == ["binary/encrypted"]
    assert args != chain.seal_args([{"a": "x" * 2000}])[0], "each has a nonce of its own"


def test_a_large_argument_is_stored_elsewhere_and_verified(settings, tmp_path):
    settings.STORAGES = settings.STORAGES | {
        "payloads": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path)},
        }
    }
    settings.OJS = settings.OJS | {
        "CODECS": ["jobs.codecs.Encryption"],
        "PAYLOAD_STORAGE": "payloads",
        "PAYLOAD_URI": "s3://bucket",
        "PAYLOAD_EXTERNAL_FROM": 1000,
    }
    small, large = (jobs.enqueue("pay.charge", [SECRET * times]) for times in (1, 100))

    (reference,) = Job.objects.get(pk=large.id).args
    assert reference["__ojs_ref"].startswith("s3://bucket/")
    assert reference["checksum"].startswith("sha256:")
    (file,) = tmp_path.iterdir()
    assert len(file.read_bytes()) == reference["size"]
    assert SECRET not in file.read_text()
    assert jobs.get(large.id).args == [SECRET * 100]
    assert jobs.get(small.id).args == [SECRET]
    payload = server.payload_of(reference, Job.objects.get(pk=large.id).meta)
    decoded = base64.b64decode(server.decoded(payload, "")["data"])
    assert json.loads(decoded) == [SECRET * 100]

    file.write_bytes(b"{}")
    with pytest.raises(codecs.PayloadChecksumMismatch):
        _ = jobs.get(large.id).args
    assert storages["payloads"].exists(file.name)


@pytest.mark.parametrize(
    "uri", ["file:///etc/passwd", "https://example.com/x", "s3://bucket/../../etc/passwd"]
)
def test_a_reference_to_anything_else_is_left_alone(settings, uri):
    settings.OJS = settings.OJS | {"PAYLOAD_STORAGE": "default", "PAYLOAD_URI": "s3://bucket"}
    args = [{"__ojs_ref": uri}]

    assert chain.open_args(args, {}) == args


def test_the_codec_server_decodes_and_encodes_for_keys_with_the_scope(db):
    sealed, meta = chain.seal_args([SECRET])
    payload = server.payload_of(sealed[0], meta)
    may = OJSClient(make_key("may", scopes=["ojs:admin:args"])[1])
    may_not = OJSClient(make_key("may-not", scopes=["produce", "operate"])[1])

    def ask(client: Any, verb: str, *payloads: Any) -> Any:
        return client.post(
            f"/ojs/codec/{verb}",
            json.dumps({"payloads": payloads}),
            content_type="application/json",
        )

    (clear,) = ask(may, "decode", payload).json()["payloads"]
    assert base64.b64decode(clear["data"]).decode() == json.dumps([SECRET])
    assert clear["metadata"] == {"encoding": "json/plain"}
    (again,) = ask(may, "encode", clear).json()["payloads"]
    assert again["metadata"] == {"encoding": "binary/encrypted", "encryption_key_id": "new"}
    assert ask(may, "decode", again).json()["payloads"] == [clear]
    assert [ask(may_not, verb, payload).status_code for verb in ("encode", "decode")] == [403, 403]
    assert ask(OJSClient("wrong"), "decode", payload).status_code == 401
    broken = payload | {"data": "AQIDBAUGBwg="}
    refused = ask(may, "decode", payload, broken)
    assert refused.status_code == 400
    assert refused.json()["error"]["details"]["field"] == "payloads[1]"
    recorded = OperatorAction.objects.filter(verb="view_job_args").values_list("actor", "count")
    assert list(recorded) == [("may", 1), ("may", 1)]


@once_is_enough
@pytest.mark.parametrize(
    "options",
    [
        {"ENQUEUE_MIDDLEWARE": ["jobs.codecs.Encode", "jobs.middleware.ContextMiddleware"]},
        {"EXECUTION_MIDDLEWARE": []},
    ],
)
def test_a_chain_that_would_leave_something_in_clear_is_reported(settings, options):
    assert not [problem for problem in run_checks() if problem.id == "ojs.E029"]

    settings.OJS = settings.OJS | options

    assert [problem for problem in run_checks() if problem.id == "ojs.E029"]


NO_BASE64 = ["é", "W10=é", "W10", "W1 0="]


@pytest.mark.parametrize("text", NO_BASE64)
@pytest.mark.parametrize("verb", ["encode", "decode"])
def test_the_codec_server_refuses_what_is_not_base64(verb, text):
    may = OJSClient(make_key("may", scopes=["ojs:admin:args"])[1])
    payload = {"data": text, "metadata": {"encoding": "json/plain"}}

    refused = may.post(
        f"/ojs/codec/{verb}", json.dumps({"payloads": [payload]}), content_type="application/json"
    )

    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "It is not base64."


@once_is_enough
@pytest.mark.parametrize("text", NO_BASE64)
def test_a_worker_says_what_is_wrong_with_data_that_are_not_base64(text):
    sealed = chain.sealed(SECRET) | {"data": text}

    with pytest.raises(codecs.CodecError, match="not base64"):
        chain.opened(sealed)


@once_is_enough
@pytest.mark.parametrize("text", NO_BASE64)
def test_a_key_of_the_environment_that_is_not_base64_is_named(monkeypatch, text):
    monkeypatch.setenv("CODEC_KEYS", f"k={text}")

    with pytest.raises(ImproperlyConfigured, match="key 'k' is not base64"):
        codecs.of_environment()


def needs_a_key(key: str) -> None:
    """It can be imported, and not called."""


WITHOUT_MIDDLEWARE: dict[str, Any] = {"ENQUEUE_MIDDLEWARE": [], "EXECUTION_MIDDLEWARE": []}
"""As a codec server of its own may have it."""


@once_is_enough
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"CODECS": ["nope.nope"]}, 'OJS["CODECS"]: No module named'),
        ({"CODECS": ["nope.nope"]} | WITHOUT_MIDDLEWARE, 'OJS["CODECS"]: No module named'),
        ({"CODECS": [f"{HERE}.nope"]}, 'OJS["CODECS"]: Module'),
        ({"CODECS": [f"{HERE}.needs_a_key"]}, f'OJS["CODECS"]: {HERE}.needs_a_key cannot'),
        ({"CODECS": ["builtins.dict"]}, 'OJS["CODECS"]: builtins.dict has no encoding.'),
        ({"CODEC_KEYS": "nope.nope"}, 'OJS["CODEC_KEYS"]: No module named'),
        ({"CODEC_KEYS": "nope.nope"} | WITHOUT_MIDDLEWARE, 'OJS["CODEC_KEYS"]: No module named'),
        ({"CODEC_KEYS": f"{HERE}.KEYS"}, f'OJS["CODEC_KEYS"]: {HERE}.KEYS is no function.'),
    ],
)
def test_codecs_that_cannot_work_are_reported(settings, options, reason):
    settings.OJS = settings.OJS | options

    (problem,) = [problem for problem in run_checks() if problem.id == "ojs.E036"]
    assert problem.msg.startswith(reason)


@once_is_enough
def test_keys_of_the_environment_that_cannot_be_read_are_reported(settings, monkeypatch, tmp_path):
    settings.OJS = settings.OJS | {"CODEC_KEYS": "jobs.codecs.of_environment"}
    (tmp_path / "binary").write_bytes(NEW + b"\xff")

    def reported(**variables: str) -> list[str]:
        for name in ("CODEC_KEYS", "CODEC_KEYS_FILE"):
            monkeypatch.setenv(name, variables.get(name, ""))
        return [problem.msg for problem in run_checks() if problem.id == "ojs.E036"]

    (missing,) = reported(CODEC_KEYS_FILE=str(tmp_path / "nope"))
    assert missing.startswith("CODEC_KEYS_FILE: ")
    assert "No such file" in missing
    assert reported(CODEC_KEYS_FILE=str(tmp_path / "binary")) == ["CODEC_KEYS_FILE: it is no text."]
    assert reported(CODEC_KEYS="k=é") == ["CODEC_KEYS: key 'k' is not base64."]
    assert reported(CODEC_KEYS="k=W10=") == ["OJS[\"CODEC_KEYS\"]: key 'k' is not 32 bytes."]
    assert reported() == [], "the keys may be those of other processes"


@once_is_enough
def test_the_check_asks_no_service_for_keys(settings):
    settings.OJS = settings.OJS | {"CODEC_KEYS": f"{HERE}.needs_a_key"}

    assert not [problem for problem in run_checks() if problem.id == "ojs.E036"]


@once_is_enough
def test_encryption_without_its_package_is_reported_where_it_is_used(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    chain.chain.cache_clear()

    (problem,) = [problem for problem in run_checks() if problem.id == "ojs.E036"]
    assert "pip install 'django-ojs[encryption]'" in problem.msg

    settings.OJS = settings.OJS | WITHOUT_MIDDLEWARE
    assert not [problem for problem in run_checks() if problem.id == "ojs.E036"]
