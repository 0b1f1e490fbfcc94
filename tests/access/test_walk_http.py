"""Every command over HTTP × every kind of key: each is answered as the table says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson
import pytest
from django.urls import get_resolver

from jobs.access import Binding, Command, commands, find
from jobs.http.fast_path import FastView
from jobs.spec.worker_ids import qualified
from tests.database import rolled_back
from tests.ojs_client import OJSClient
from workers.bindings.flare import ids
from workers.bindings.shared.switched import Switched

from .kinds import KINDS, LABEL, PROJECT, WORKER, Kind, Promise
from .scenes import SECRET, Scene, double, is_untouched, rows, scene, tells_of_twin

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

OPTIONS = {"FLARE": {"ENABLED": True}, "API_KEY_CACHE": 0}
FUNCTIONS = {"openapi_json": "documentation.openapi_json", "docs": "documentation.docs"}


REFUSED_ANYWAY = {
    "reset.reset": 404,
    "workers.destroy": 409,
    "live.of_job": 501,
    "live.of_queue": 501,
    "live.of_channel": 501,
    "live.socket": 426,
}
"""Commands that are refused to every key: outside `CONFORMANCE_MODE`, for a worker that is alive,
without an event loop, or without a WebSocket handshake (`tests/realtime` has these)."""


class Said(NamedTuple):
    """A request for a command: its path parameters, body, and query."""

    job: str = "available"
    body: Any = None
    query: str = ""


JOB = {"type": "a.b", "args": []}
STEPS = {"type": "chain", "steps": [JOB]}
BOX = {"hostname": "box", "pid": 1, "queues": ["default"], "concurrency": 1, "labels": [LABEL]}
CONFIRMED = {"confirm": True}
ERROR = {"code": "broken", "message": "It broke."}


def dead(s: Scene) -> Any:
    return CONFIRMED | {"filter": {"queue": s.queue, "state": "discarded"}}


def fleet(s: Scene) -> Any:
    return CONFIRMED | {"filter": {"queue": s.queue}}


def on(job: str, **body: Any) -> Callable[[Scene], Said]:
    return lambda s: Said(job, body)


def by_worker(job: str = "active", **body: Any) -> Callable[[Scene], Said]:
    return lambda s: Said(job, {"worker_id": s.worker, "job_id": str(s.jobs[job].pk)} | body)


def by_flare_worker(**body: Any) -> Callable[[Scene], Said]:
    return lambda s: Said(
        "active", {"worker_id": s.worker, "job_id": ids.write(s.jobs["active"].pk)} | body
    )


def selected(job: str) -> Callable[[Scene], Said]:
    return lambda s: Said(job, {"job_ids": [str(s.jobs[job].pk)]})


NOTHING = on("available")
PAYLOAD = {"data": "W10=", "metadata": {"encoding": "json/plain"}}
HOW: dict[str, Callable[[Scene], Said]] = {
    "OJS jobs.create": on("", **JOB),
    "OJS jobs.batch": on("", jobs=[JOB]),
    "OJS jobs.prioritize": on("available", priority=5),
    "OJS jobs.activate": on("pending"),
    "OJS bulk.enqueue": on("", jobs=[JOB]),
    "OJS bulk.cancel": selected("available"),
    "OJS bulk.retry": selected("dead"),
    "OJS bulk.delete_finished": selected("completed"),
    "OJS results.retrieve": on("completed"),
    "OJS results.bulk": lambda s: Said("", {"ids": [str(s.jobs["completed"].pk)]}),
    "OJS workflows.create": on("", **STEPS),
    "OJS cron.create": lambda s: Said("", JOB | {"name": s.cron, "cron": "0 3 * * *"}),
    "OJS cron.update": on("", enabled=False),
    "OJS queues.create": on("", name="new"),
    "OJS queues.configure": on("", concurrency=5),
    "OJS queues.destroy": on("", strategy="discard"),
    "OJS queues.purge": on("", confirm=True, states=["available"]),
    "OJS rate-limits.override": on("", concurrency=5),
    "OJS history.of_job": on("dead"),
    "OJS history.purge_job": on("dead"),
    "OJS history.purge": lambda s: Said("", None, "before=2020-01-01T00:00:00Z"),
    "OJS job-specs.create": on("", specs={"a.new": "v1"}),
    "OJS schemas.register": on("", job_type="a.new", version="1.0.0", schema={"type": "array"}),
    "OJS codec.encode": on("", payloads=[PAYLOAD]),
    "OJS codec.decode": on("", payloads=[PAYLOAD]),
    "OJS webhooks.create": on("", url="https://example.com/", events=["job.*"]),
    "OJS webhooks.update": on("", events=["job.failed"]),
    "OJS dead-letter.retrieve": on("dead"),
    "OJS dead-letter.retry": on("dead"),
    "OJS dead-letter.destroy": on("dead"),
    "OJS dead-letter.purge": on("dead", **CONFIRMED),
    "OJS workers.register": lambda s: Said("", BOX | {"worker_id": s.worker}),
    "OJS workers.deregister": lambda s: Said("", {"worker_id": s.worker}),
    "OJS workers.heartbeat": by_worker(active_job_ids=[]),
    "OJS workers.fetch": lambda s: Said("", {"worker_id": s.worker, "queues": [s.queue]}),
    "OJS workers.ack": by_worker(),
    "OJS workers.nack": by_worker(error=ERROR),
    "OJS progress.retrieve": on("active"),
    "OJS progress.stream": on("completed"),
    "OJS progress.report": by_worker(progress=0.5),
    "OJS checkpoint.save": lambda s: Said("active", {"worker_id": s.worker, "state": 1}),
    "OJS checkpoint.retrieve": on("active"),
    "OJS checkpoint.destroy": on("active"),
    "OJS autoscaling.retrieve": lambda s: Said("", None, "queues=default"),
    "ADMIN jobs.retry": on("dead"),
    "ADMIN jobs.prioritize": on("available", priority=5),
    "ADMIN bulk.retry": lambda s: Said("", dead(s)),
    "ADMIN bulk.retry_dead": lambda s: Said("", CONFIRMED | {"filter": {"queue": s.queue}}),
    "ADMIN bulk.cancel": lambda s: Said("", fleet(s)),
    "ADMIN bulk.delete_finished": lambda s: Said("", fleet(s)),
    "ADMIN dead-letter.retrieve": on("dead"),
    "ADMIN dead-letter.retry": on("dead"),
    "ADMIN dead-letter.destroy": on("dead"),
    "ADMIN dead-letter.purge": on("dead", **CONFIRMED),
    "ADMIN queues.configure": on("", concurrency=5),
    "ADMIN queues.limit": on("", concurrency=5),
    "ADMIN queues.purge": on("", confirm=True, states=["available"]),
    "ADMIN queues.destroy": on("", strategy="discard"),
    "ADMIN schemas.register": on("", schema={"type": "array"}),
    "ADMIN schemas.set_validation": on("", type="a.b", mode="warn"),
    "ADMIN tenants.limit": on("", max_queue_depth=5),
    "ADMIN pools.configure": lambda s: Said("", {"queues": [s.queue]}),
    "ADMIN system.switch": on("", enabled=False),
    "ADMIN execution.of_job": on("dead"),
    "ADMIN execution.purge_job": on("dead"),
    "ADMIN execution.purge": lambda s: Said("", None, "before=2020-01-01T00:00:00Z"),
    "ADMIN marks.create": on("", text="v1"),
    "ADMIN workers.direct": on("", directive="quiet"),
    "ADMIN workers-bulk.quiet": lambda s: Said("", fleet(s)),
    "ADMIN workers-bulk.resume": lambda s: Said("", fleet(s)),
    "ADMIN workers-bulk.terminate": lambda s: Said("", fleet(s)),
    "ADMIN workers-bulk.direct": lambda s: Said("", fleet(s) | {"directive": "quiet"}),
    "FLARE workers.register": lambda s: Said(
        "", {"worker_id": s.worker, "queues": [s.queue], "job_types": ["a.b"]}
    ),
    "FLARE workers.poll": lambda s: Said("", {"worker_id": s.worker, "queues": [s.queue]}),
    "FLARE workers.ack": by_flare_worker(status="succeeded"),
    "FLARE workers.heartbeat": by_flare_worker(),
    "FLARE jobs.create": on("", job_type="a.b"),
}
"""The requests of commands that need more than their path."""


class Door(NamedTuple):
    """One method of one address."""

    method: str
    path: str
    command: str
    declared: Command | None
    is_hot: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def short(binding: str) -> str:
    return binding.split()[0].upper()


def doors() -> Iterator[Door]:
    for pattern in get_resolver("workers.urls").url_patterns:
        path = f"/{pattern.pattern}"
        view = (pattern.switched_on() if isinstance(pattern, Switched) else pattern).callback
        viewset = getattr(view, "cls", None)
        if viewset is not None:
            for method, action in view.actions.items():
                if method != "head":
                    name = f"{viewset.resource}.{action}"
                    declared = find(viewset.binding, name)
                    command = f"{short(viewset.binding)} {name}"
                    is_hot = isinstance(view, FastView)
                    yield Door(method.upper(), path, command, declared, is_hot)
        elif view.__name__ != "not_found":
            name = FUNCTIONS.get(view.__name__, view.__name__)
            yield Door("GET", path, f"OJS {name}", find(Binding.OJS, name))


def address(door: Door, s: Scene, said: Said) -> str:
    job = s.jobs.get(said.job)
    written = job and (ids.write(job.pk) if "/flare/" in door.path else str(job.pk))
    name = s.cron if "/cron" in door.path else s.schema if "specs" in door.path else s.queue
    path = door.path
    for part, value in {
        "<str:job_id>": written,
        "<str:workflow_id>": str(s.workflow.pk),
        "<path:worker_id>": s.worker,
        "<str:type>": s.schema,
        "<str:version>": "1.0",
        "<str:key>": s.limit,
        "<str:tenant_id>": s.project,
        "<str:name>": name,
        "<path:name>": f"urn:{s.schema}",
        "<str:subscription_id>": s.delivery.subscription.name,
        "<str:delivery_id>": s.delivery.name,
    }.items():
        path = path.replace(part, str(value))
    return f"{path}?{said.query}" if said.query else path


def ask(client: OJSClient, door: Door, s: Scene) -> Any:
    said = HOW.get(door.command, NOTHING)(s)
    body = b"" if said.body is None else orjson.dumps(said.body)
    if door.method == "GET":
        return client.get(address(door, s, said))
    return client.generic(
        door.method, address(door, s, said), body, content_type="application/json"
    )


def content(reply: Any) -> str:
    found: bytes = reply.getvalue() if reply.streaming else reply.content
    return found.decode()


def kept_its(promise: Promise, door: Door, reply: Any, shown: str) -> bool:
    """Whether a reply matches the table; unchanged rows are checked separately."""
    status = reply.status_code
    error = orjson.loads(shown).get("error", {}) if status >= 400 else {}
    details = error.get("details", {})
    command = door.declared
    match promise:
        case Promise.STRANGER:
            return status == 401
        case Promise.SCOPE:
            return (status, details.get("scope")) == (403, command.scopes[0])
        case Promise.ALL_PROJECTS:
            return status == 403 and "project" in details
        case Promise.UNTOUCHED:
            return status not in (401, 500) and SECRET not in shown
    return status < 300 or REFUSED_ANYWAY.get(command.name) == status


def wrongly_answered(kind: Kind, s: Scene, client: OJSClient, doors: Iterable[Door]) -> list[str]:
    wrong = []
    before = rows()
    for door in doors:
        promise = kind.promised(door.declared)
        with rolled_back():
            reply = ask(client, door, s)
            shown = content(reply)
            changed = promise is Promise.UNTOUCHED and not is_untouched(before)
        if changed or not kept_its(promise, door, reply, shown):
            wrong.append(f"{door}: {promise} ({changed=}): {reply.status_code} {shown[:200]}")
        if SECRET in shown and not kind.sees_arguments:
            wrong.append(f"{door} shows a secret: {shown[:200]}")
        if door.declared.hides and kind.name == "everything" and SECRET not in shown:
            wrong.append(f"{door} hides nothing that it would show to others")
    return wrong


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_endpoint_keeps_what_the_table_promises(kind, settings):
    settings.OJS = OPTIONS
    s = scene(kind)
    client = OJSClient(kind.key())
    client.see("queues")
    kind.turn()

    wrong = wrongly_answered(kind, s, client, doors())

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_hot_verbs_keep_it_off_the_fast_path_too(kind, settings):
    settings.OJS = OPTIONS | {"FAST_PATH": False}
    s = scene(kind)
    client = OJSClient(kind.key())
    client.see("queues")
    kind.turn()

    wrong = wrongly_answered(kind, s, client, [door for door in doors() if door.is_hot])

    assert not wrong, "\n".join(wrong)


OF_A_PROJECT = [kind for kind in KINDS if kind.name == "of a project"]
OF_ITS_WORKER = Kind("of a worker of a project", bound={"project": PROJECT, "worker_id": WORKER})
OF_ITS_LABEL = Kind("of a label in a project", bound={"project": PROJECT, "label": LABEL})


@pytest.mark.parametrize("kind", [*OF_A_PROJECT, OF_ITS_WORKER, OF_ITS_LABEL], ids=lambda k: k.name)
def test_no_endpoint_tells_a_project_that_another_has_a_worker_of_the_same_id(kind, settings):
    settings.OJS = OPTIONS
    s = scene(kind)
    double(s)
    client = OJSClient(kind.key())

    telling = []
    for door in doors():
        with rolled_back():
            reply = ask(client, door, s)
            shown = content(reply)
        is_about_all = door.command.startswith("OJS documentation.")
        reveals = tells_of_twin(shown) and not is_about_all
        if reveals or not kept_its(kind.promised(door.declared), door, reply, shown):
            telling.append(f"{door}: {reply.status_code} {shown[:300]}")

    assert not telling, "\n".join(telling)


@pytest.mark.parametrize(
    "path",
    [
        "admin/workers/{stored}",
        "admin/jobs?worker_id={stored}",
        "events?worker_id={stored}",
        "events?worker_id=acme@/*",
        "events?worker_id=acme*",
        "events?worker_id=twin*",
    ],
)
def test_a_project_cannot_ask_whether_its_worker_is_stored_under_another_name(path, settings):
    settings.OJS = OPTIONS
    (kind,) = OF_A_PROJECT
    s = scene(kind)
    double(s)

    reply = OJSClient(kind.key()).see(path.format(stored=qualified(s.worker, s.project)))

    found = reply.json()
    assert reply.status_code == 404 or found.get("items", found.get("events")) == []


def test_an_open_server_lets_everybody_do_everything(settings):
    settings.OJS = OPTIONS | {"ALLOW_ANONYMOUS": True}
    everybody = Kind("everybody")

    wrong = wrongly_answered(everybody, scene(everybody), OJSClient(), doors())

    assert not wrong, "\n".join(wrong)


def test_every_endpoint_is_declared_and_nothing_else_is(settings):
    settings.OJS = OPTIONS
    served = {door.command: door.declared for door in doors()}
    served["OJS readiness.retrieve"] = find(Binding.OJS, "readiness.retrieve")

    assert [name for name, declared in served.items() if declared is None] == []
    declared = {
        f"{short(row.binding)} {row.name}"
        for binding in (Binding.OJS, Binding.ADMIN, "Flare")
        for row in commands(binding)
    }
    assert declared - served.keys() == set()
