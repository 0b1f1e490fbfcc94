"""Stories of a whole site: a server, a reaper and workers as processes, and what others see of it.

Everything is said over HTTP. Only the passing of time is shortened, in the database.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import re
import socket
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

import jobs
from jobs.models import Job
from tests.database import alias
from tests.factories import ago
from tests.once import once_is_enough
from tests.processes import PATIENCE, environment, eventually, forked, free_port
from tests.workers.deliveries import CARRYING, end_pauses
from tests.workers.receiver import receiving
from tests.workers.site import NOWHERE
from workers.models import WebhookDelivery, Worker

pytestmark = [pytest.mark.slow, once_is_enough]

V1 = "/ojs/v1"
OPTIONS = {
    "ALLOW_ANONYMOUS": 1,
    "LOG_JOBS": 1,
    "OUTBOUND_NETWORKS": '["127.0.0.1"]',
    "WEBHOOKS_ALLOW_HTTP": 1,
    "REAPER_INTERVAL": 0.2,
    "HEARTBEAT_INTERVAL": 0.5,
}
KEY = base64.b64encode(b"k" * 32).decode()
SECRET = "4111-1111-1111-1111"


class Site:
    """The processes of a site, which write their logs to `folder`."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.reaper: Any = None
        shop = {"DJANGO_SETTINGS_MODULE": "tests.shop.settings", "SHOP_FOLDER": str(folder)}
        shop["DJANGO_SECRET_KEY"] = settings.SECRET_KEY
        self.environment = environment(database_url, **OPTIONS) | shop
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)
        self.serving = ["runhttp", "--host", "127.0.0.1", "--port", str(port)]

    def process(self, *command: str, **variables: str) -> Any:
        log = self.folder / f"{command[0]}.log"
        return forked(log, self.environment | variables, *command)

    @contextlib.contextmanager
    def worker(self, *options: str, **variables: str) -> Iterator[Any]:
        """A worker that has the server's address, and no database."""
        command = ["runjobworker", "--url", self.url, "--concurrency", "1", *options]
        with self.process(*command, DATABASE_URL=NOWHERE, **variables) as started:
            started.wait_for("jobs at once, of")
            yield started

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.request(method, f"{V1}/{path}", json=body, headers=named)

    def get(self, path: str) -> Any:
        return self.ask("GET", path).raise_for_status().json()

    def enqueue(self, kind: str, *args: Any, tenant: str = "", **options: Any) -> str:
        headers = {"X_OJS_Tenant": tenant} if tenant else {}
        job = {"type": kind, "args": list(args), **options}
        reply = self.ask("POST", "jobs", job, **headers)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["job"]["id"])

    def log_in(self) -> None:
        """Log in to the admin as a superuser; sessions are signed with the same key here."""
        browser = Client()
        browser.force_login(User.objects.create_superuser("ada"))
        self.http.cookies.update({name: each.value for name, each in browser.cookies.items()})

    def completes(self, job_id: str) -> None:
        def is_completed() -> bool:
            return bool(self.get(f"jobs/{job_id}")["job"]["state"] == "completed")

        eventually(is_completed, lambda: str(self.get(f"jobs/{job_id}")))


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Site]:
    made = Site(tmp_path, database_url)
    with made.http, made.process(*made.serving) as server:

        def is_there() -> bool:
            assert server.process.poll() is None, server.output
            with contextlib.suppress(httpx.TransportError):
                return made.ask("GET", "health").status_code == 200
            return False

        eventually(is_there, lambda: server.output)
        with made.process("runreaper") as made.reaper:
            yield made


def test_a_webhook_arrives_signed_although_its_receiver_fails_twice(site):
    with receiving(503, 500) as receiver:
        wanted = {"url": receiver.at(), "events": ["job.completed"], "filter": {"queues": ["pay"]}}
        hook = site.ask("POST", "webhooks/subscriptions", wanted).raise_for_status().json()
        with site.worker("--queues", "pay,default"):
            for queue in ("default", "pay"):
                job_id = site.enqueue("shop.noop", options={"queue": queue})
                site.completes(job_id)
            for failure in ({"attempts__0__status": 503}, {"attempts__1__status": 500}):
                # The next attempt would be made minutes later.
                failed = WebhookDelivery.objects.pending().filter(**failure)
                eventually(lambda failed=failed: failed.exists() and end_pauses())
            eventually(WebhookDelivery.objects.filter(state="delivered").exists)

    deliveries = set()
    for headers, body in receiver.received:
        signed = f"{headers['X-OJS-Timestamp']}.".encode() + body
        expected = hmac.new(hook["secret"].encode(), signed, hashlib.sha256).hexdigest()
        assert headers["X-OJS-Signature"] == f"sha256={expected}"
        deliveries.add(headers["X-OJS-Delivery-ID"])
        event = json.loads(body)
        assert (event["type"], event["subject"]) == ("job.completed", job_id)
    assert len(deliveries) == 1
    found = site.get(f"webhooks/deliveries/{deliveries.pop()}")
    assert [each["status"] for each in found["attempts"]] == [503, 500, 200]
    assert found["status"] == "delivered"


def test_a_webhook_arrives_although_the_process_that_sends_it_is_killed(site):
    hooks = "webhooks/subscriptions"
    with socket.create_server(("127.0.0.1", 0)) as silent, site.worker("--queues", "default"):
        silent.settimeout(PATIENCE)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        hook = site.ask("POST", hooks, {"url": url, "events": ["job.completed"]}).json()
        site.completes(site.enqueue("shop.noop"))
        connection, _ = silent.accept()
        with connection:
            site.reaper.process.kill()
            site.reaper.process.wait(PATIENCE)
    (lost,) = WebhookDelivery.objects.all()
    assert (lost.state, lost.tries) == ("pending", 1)
    # Its heartbeats are long over.
    assert CARRYING.active().update(reserved_until=ago(1)) == 1

    # What recovers it sends nothing; a worker of the queue does.
    recovering = site.process("runreaper", "--only", "expired-reservations")
    sending = site.process("runjobworker", "--queues", "ojs.webhooks")
    with receiving() as receiver, recovering, sending:
        site.ask("PATCH", f"{hooks}/{hook['id']}", {"url": receiver.at()}).raise_for_status()
        eventually(WebhookDelivery.objects.filter(state="delivered", tries=2).exists)
    ((headers, _),) = receiver.received
    assert headers["X-OJS-Delivery-ID"] == lost.name


def test_a_noisy_tenant_delays_a_quiet_one_by_a_few_jobs(site):
    many = 300
    turns = {"tenant_fairness": {"enabled": True}}
    limits = {"max_queue_depth": many}
    site.ask("PUT", "queues/shared/config", turns).raise_for_status()
    site.ask("PUT", "admin/tenants/noisy/limits", limits).raise_for_status()
    job = {"type": "shop.noop", "args": [], "options": {"queue": "shared"}}
    flood = site.ask("POST", "jobs/batch", {"jobs": [job] * many}, X_OJS_Tenant="noisy")
    assert flood.status_code == 201, flood.text
    refused = site.ask("POST", "jobs", job, X_OJS_Tenant="noisy")
    assert refused.status_code == 429, refused.text
    assert "Retry-After" in refused.headers

    with site.worker("--queues", "shared"):
        eventually(lambda: site.get("queues/shared/stats")["stats"]["completed"])
        quiet = site.enqueue("shop.noop", tenant="quiet", options={"queue": "shared"})
        site.completes(quiet)
        mine = Job.objects.get(pk=quiet)
        between = Job.objects.filter(
            started_at__gt=mine.enqueued_at, started_at__lt=mine.started_at, queue="shared"
        )
        assert between.count() <= 10, "as many as a worker may have fetched before, and a turn"
        assert Job.objects.filter(queue="shared", state="available").exists()
    assert site.ask("GET", f"jobs/{quiet}", X_OJS_Tenant="noisy").status_code == 404


def schema(**properties: Any) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"n": {"type": "integer"}} | properties,
        "required": ["n", *(name for name, about in properties.items() if "const" in about)],
    }


def test_a_breaking_schema_is_refused_and_a_compatible_one_taken_while_old_workers_run(site):
    def register(version: str, wanted: dict[str, Any]) -> httpx.Response:
        named = {"type": "shop.versioned", "version": version, "schema": wanted}
        return site.ask("POST", "schemas", named)

    def push(version: str, **payment: Any) -> httpx.Response:
        job = {"type": "shop.versioned", "version": version, "args": [payment]}
        return site.ask("POST", "jobs", job)

    assert register("2.0.0", schema()).status_code == 201
    mode = {"type": "shop.versioned", "mode": "strict"}
    site.ask("PUT", "admin/schema-validation", mode).raise_for_status()
    with site.worker() as worker:
        site.completes(push("2.0.0", n=1).json()["job"]["id"])
        breaking = schema(currency={"const": "EUR"})
        refused = register("2.1.0", breaking)
        assert refused.status_code == 422, refused.text
        assert "currency" in refused.text
        assert register("2.1.0", schema(note={"type": "string"})).status_code == 201
        assert register("3.0.0", breaking).status_code == 201

        site.completes(push("2.1.0", n=2, note="by post").json()["job"]["id"])
        site.completes(push("2.0.0", n=3).json()["job"]["id"])
        assert push("2.1.0", n="two").status_code == 422
        assert push("3.0.0", n=4).status_code == 422
        waits = push("3.0.0", n=4, currency="EUR").json()["job"]["id"]
        site.completes(push("2.1.0", n=5).json()["job"]["id"])

        assert site.get(f"jobs/{waits}")["job"]["state"] == "available", "no worker can read it"
        assert site.ask("DELETE", "schemas/shop.versioned/2.1.0").status_code == 409
        assert worker.terminate() == 0
    assert Worker.objects.live().count() == 0
    assert site.ask("DELETE", "schemas/shop.versioned/2.1.0").status_code == 200


def everything_stored() -> str:
    """Every row of every table, whosever they are."""
    connection = connections[alias()]
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            found.append(repr(cursor.fetchall()))
    return "\n".join(found)


def pages_from(http: httpx.Client, start: str) -> Iterator[httpx.Response]:
    """Every page of the admin that links lead to, once each."""
    seen, ahead = {start}, [start]
    while ahead:
        page = http.get(ahead.pop(), follow_redirects=True)
        yield page
        if "html" not in page.headers["Content-Type"]:
            continue
        for link in re.findall(r'href="([^"#]+)', page.text):
            address = str(page.url.join(unescape(link)).copy_with(fragment=None, query=None))
            if "/admin/ojs_" in address and address not in seen and not address.endswith("/live/"):
                seen.add(address)
                ahead.append(address)


def test_a_secret_is_in_no_column_no_log_and_no_page(site, settings):
    settings.OJS = settings.OJS | {
        "ENQUEUE_MIDDLEWARE": ["jobs.codecs.Encode"],
        "CODEC_KEYS": "tests.scenarios.test_from_outside.keys",
    }
    may_read = {
        "OJS_EXECUTION_MIDDLEWARE": '["jobs.codecs.Decode", "jobs.middleware.LogExecution"]',
        "CODEC_KEYS": f"now={KEY}",
    }
    with receiving() as receiver:
        wanted = {"url": receiver.at(), "events": ["*"]}
        site.ask("POST", "webhooks/subscriptions", wanted).raise_for_status()
        soon = {"initial_interval": "PT0.01S"}
        unique = {"keys": ["type", "args"]}
        job = jobs.enqueue("shop.pay", [SECRET], retry=soon, unique=unique, queue="pay")
        hopeless = jobs.enqueue("shop.pay", [SECRET], max_attempts=1, queue="pay")
        chain = jobs.chain(
            jobs.job("shop.echo", [SECRET], queue="pay"),
            jobs.job("shop.parents", queue="pay"),
        ).enqueue()
        with site.worker("--queues", "pay", **may_read) as worker:
            site.completes(str(job.id))
            eventually(lambda: chain.refresh().state == "completed")
            eventually(lambda: site.get(f"jobs/{hopeless.id}")["job"]["state"] == "discarded")
            assert worker.terminate() == 0
        eventually(lambda: not WebhookDelivery.objects.pending().exists())
        assert receiver.received

    assert jobs.get(job.id).result == {"paid with": SECRET}, "who has the key reads it"
    assert jobs.get(job.id).errors[0].type == "ConnectionError"
    stored = everything_stored()
    assert "shop.pay" in stored, "it is looked for where it would be"
    assert SECRET not in stored
    assert not any(SECRET in body.decode() for _, body in receiver.received)
    for log in site.folder.glob("*.log"):
        assert log.read_text(), log
        assert SECRET not in log.read_text(), log
    assert "Paying." in (site.folder / "runjobworker.log").read_text()

    of_api = [
        f"jobs/{job.id}",
        f"jobs/{job.id}/history",
        f"jobs/{job.id}/checkpoint",
        f"jobs/{job.id}/result",
        f"admin/jobs/{job.id}",
        f"dead-letter/{hopeless.id}",
        "admin/jobs",
        "events",
        "webhooks/deliveries",
    ]
    answers = [site.ask("GET", path) for path in of_api]
    assert {each.status_code for each in answers} == {200}
    site.log_in()
    pages = list(pages_from(site.http, f"{site.url}/admin/ojs_jobs/"))
    visited = {each.url.path for each in pages if each.status_code == 200}
    assert f"/admin/ojs_jobs/job/{job.id}/change/" in visited
    assert f"/admin/ojs_jobs/deadjob/{hopeless.id}/change/" in visited
    assert len(visited) > 40
    for page in (*answers, *pages):
        assert SECRET not in page.text, page.url
        assert SECRET not in str(page.headers), page.url
    assert SECRET not in everything_stored(), "sessions, messages and the audit included"


def keys() -> dict[str, bytes]:
    return {"now": base64.b64decode(KEY)}
