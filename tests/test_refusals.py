"""Every refusal that the OpenAPI document lists for an endpoint can happen there."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.db import OperationalError, transaction
from django.db.models import Q

from jobs import engine, schemas
from jobs.access.audit import of_shell
from jobs.engine import maintenance
from jobs.http.authentication import forget_keys, make_key
from jobs.models import ApiKey, CronJob, Job
from jobs.spec.pools import read_pool
from jobs.spec.validation import new_job
from jobs.store import clock
from tests.access import test_walk_http as walk
from tests.access.kinds import Kind
from tests.access.scenes import scene
from tests.database import alias, connection
from tests.described import Code, codes_of, refused_with
from tests.endpoints import OPTIONS, Stage, doors_by_path, name_of
from tests.factories import JobFactory, ago
from tests.once import once_is_enough
from workers.bindings.flare import ids
from workers.models import WebhookSubscription, Worker
from workers.openapi.document import current
from workers.webhooks import delivery, subscriptions

pytestmark = once_is_enough

UNKNOWN = "019414d4-0000-7000-8000-000000000000"
UNKNOWN_IN_FLARE = "job_01KGWTDD4D9ZQR00000G5HS4QY"


def listed() -> Iterator[tuple[str, str, Code]]:
    """Method and path, with each listed status and code."""
    for path, methods in current()["paths"].items():
        for method, operation in methods.items():
            for code in codes_of(operation):
                yield method.upper(), path, code


class Broken:
    """A body that does not arrive."""

    def read(self, *size: int) -> bytes:
        raise OSError("The connection is gone.")

    readline = read


def refuse_statements(*arguments: Any) -> None:
    raise OperationalError("away")


def with_expired_key(stage: Stage) -> Any:
    ApiKey.objects.filter(name="everything").update(expires_at=ago(1))
    forget_keys()
    return stage.send()


def without_database(stage: Stage) -> Any:
    stage.send(query="limit=x")  # The key is known already.
    with connection.execute_wrapper(refuse_statements):
        return stage.send()


def of_something_unknown(stage: Stage) -> Any:
    path = stage.door.path
    for name in ("<str:job_id>", "<str:workflow_id>"):
        path = path.replace(name, UNKNOWN_IN_FLARE if "/flare/" in path else UNKNOWN)
    unknown = ("<path:worker_id>", "<str:type>", "<str:key>", "<str:name>", "<str:tenant_id>")
    for name in unknown:
        path = path.replace(name, "nobody")
    path = path.replace("<path:name>", "urn:nobody")
    path = path.replace("<str:subscription_id>", "sub_1").replace("<str:delivery_id>", "del_1")
    said = stage.usual
    body = {name: value for name, value in (said.body or {}).items() if name != "job_id"}
    said = said._replace(body=body)
    return stage.send(path=path.replace("<str:version>", "9.9"), said=said)


def of_an_unknown_job(stage: Stage) -> Any:
    said = stage.usual
    job_id = UNKNOWN_IN_FLARE if "/flare/" in stage.door.path else UNKNOWN
    return stage.send(said=said._replace(body=(said.body or {}) | {"job_id": job_id}))


EVERYWHERE: dict[Code, list[Callable[[Stage], Any]]] = {
    (400, "invalid_request"): [lambda stage: stage.send(query="x=%00")],
    (400, "invalid_payload"): [lambda stage: stage.send(body=b"{")],
    (401, "unauthenticated"): [lambda stage: stage.send(key="ojs_wrong")],
    (401, "token_expired"): [with_expired_key],
    (403, "permission_denied"): [lambda stage: stage.send(key=stage.keys["nothing"])],
    (404, "not_found"): [of_something_unknown, of_an_unknown_job],
    (404, "job_not_found"): [of_something_unknown, of_an_unknown_job],
    (408, "timeout"): [lambda stage: stage.send(**{"wsgi.input": Broken(), "CONTENT_LENGTH": "9"})],
    (413, "envelope_too_large"): [lambda stage: stage.send(options={"MAX_BODY_SIZE": 1})],
    (415, "unsupported_compression"): [
        lambda stage: stage.send(headers={"Content-Encoding": "br"})
    ],
    (422, "unsupported"): [lambda stage: stage.send(headers={"OJS-Version": "2.0"})],
    (422, "EXTENSION_NOT_SUPPORTED"): [
        lambda stage: stage.send(headers={"OJS-Requires-Extension": "urn:ojs:ext:nothing"})
    ],
    (503, "backend_error"): [without_database],
}
"""Ways to make any endpoint refuse."""


def with_body(body: Any, job: str = "available") -> Callable[[Stage], Any]:
    return lambda stage: stage.send(said=walk.Said(job, body))


def with_an_isolated_queue(stage: Stage) -> Any:
    queue = stage.scene.queue
    engine.pools.configure("other", read_pool({"queues": [queue], "isolated": True}, "other"))
    try:
        return with_body({"queues": [queue], "isolated": True})(stage)
    finally:
        engine.pools.delete("other")


def without_keys(encoding: str) -> Callable[[Stage], Any]:
    payload = {"data": "W10=", "metadata": {"encoding": encoding}}
    return lambda stage: stage.send(
        said=walk.Said("", {"payloads": [payload]}), options={"CODEC_KEYS": "builtins.dict"}
    )


def about(job: str, **body: Any) -> Callable[..., Any]:
    """The usual request, for a job in another state."""

    def send(stage: Stage, options: dict[str, Any] | None = None) -> Any:
        said = stage.usual
        found = dict(said.body or {}) | body
        if "job_id" in found:
            key = stage.scene.jobs[job].pk
            found["job_id"] = ids.write(key) if "/flare/" in stage.door.path else str(key)
        return stage.send(said=said._replace(job=job, body=found), options=options)

    return send


def jobs_in(body: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """The request with a different job."""
    if "jobs" in body:
        return body | {"jobs": [job]}
    if "steps" in body:
        return body | {"steps": [job]}
    if "job_type" in body:
        return body | {"job_type": job["type"], "queue": job.get("queue", "default")}
    return body | job


def enqueuing(change: Callable[[Stage], dict[str, Any]]) -> Callable[[Stage], Any]:
    """The usual request, whose job has further members."""

    def send(stage: Stage) -> Any:
        said = stage.usual
        job = {"type": "a.b", "args": []} | change(stage)
        return stage.send(said=said._replace(body=jobs_in(said.body or {}, job)))

    return send


def draining(stage: Stage) -> dict[str, Any]:
    JobFactory(active=True, queue="narrow")
    engine.queues.configure("narrow", {})
    engine.queues.delete("narrow", strategy="discard", target="")
    engine.forget_queues()
    return {"queue": "narrow"}


def full(stage: Stage) -> dict[str, Any]:
    engine.queues.configure("narrow", {"max_depth": 1})
    engine.forget_queues()
    engine.enqueue([new_job({"type": "a.b", "args": [], "queue": "narrow"}, clock.now())])
    return {"queue": "narrow"}


def at_its_limit(stage: Stage) -> dict[str, Any]:
    engine.tenants.configure("_default", {"max_queue_depth": 0})
    return {}


def picky(stage: Stage) -> dict[str, Any]:
    engine.queues.configure("narrow", {"allowed_job_types": ["other.*"]})
    engine.forget_queues()
    return {"queue": "narrow"}


def strictly(stage: Stage) -> dict[str, Any]:
    schemas.register("a.b", "1.0.0", {"type": "array", "minItems": 9})
    schemas.set_mode("strict")
    return {}


def body_of_schema(stage: Stage, schema: dict[str, Any]) -> walk.Said:
    said = stage.usual
    return said._replace(body=said.body | {"schema": schema})


def breaking_schema(stage: Stage) -> Any:
    """One that the version before, of the same major version, does not allow."""
    for name in ("a.new", stage.scene.schema):
        schemas.register(name, "0.9.0", {"type": "object"})
    said = body_of_schema(stage, {"type": "array"})
    if "version" in said.body:
        return stage.send(said=said._replace(body=said.body | {"version": "0.9.1"}))
    path = walk.address(stage.door, stage.scene, said)
    return stage.send(said=said, path=path.replace("1.0", "0.9.1"))


def with_as_many_webhooks_as_there_may_be(stage: Stage) -> Any:
    hook = stage.scene.delivery.subscription
    WebhookSubscription.objects.bulk_create(
        WebhookSubscription(url=hook.url, events=hook.events, secret=hook.secret)
        for _ in range(subscriptions.MOST)
    )
    return stage.send()


def while_webhooks_are_tested(stage: Stage) -> Any:
    with ExitStack() as others:
        for _ in range(delivery.TESTS_AT_ONCE):
            others.enter_context(delivery.testing)
        return stage.send()


def with_a_paused_webhook(stage: Stage) -> Any:
    WebhookSubscription.objects.update(active=False)
    return stage.send()


def of_a_cancelled_workflow(stage: Stage) -> Any:
    around = stage.scene.workflow
    Job.objects.filter(pk=stage.scene.jobs["dead"].pk).update(workflow=around)
    engine.cancel_workflow(around.pk)
    return about("dead")(stage)


def overridden(
    change: Callable[[Stage], dict[str, Any]], queue: str = "narrow"
) -> Callable[[Stage], Any]:
    """A job of the dead letter, whose type and unique key are those of the other refusals."""

    def send(stage: Stage) -> Any:
        key = new_job(JOB_OF_ITS_QUEUE, clock.now()).unique
        Job.objects.filter(pk=stage.scene.jobs["dead"].pk).update(
            type="a.b", queue=queue, attributes=UNIQUE, unique_key=key and key.key
        )
        return about("dead", override=change(stage))(stage)

    return send


UNIQUE = {"unique": {"keys": ["type", "queue"]}}
JOB_OF_ITS_QUEUE = {"type": "a.b", "args": [], "queue": "narrow"} | UNIQUE


def to_a_duplicate(stage: Stage) -> dict[str, Any]:
    engine.enqueue([new_job(JOB_OF_ITS_QUEUE | {"queue": "default"}, clock.now())])
    return {"queue": "default"}


def registered_twice(stage: Stage) -> Any:
    stage.send()
    return stage.send()


def schema_in_use(stage: Stage) -> Any:
    Worker.objects.update(job_versions={stage.scene.schema: [0, None]})
    return stage.send()


def without_jsonschema(stage: Stage) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "jsonschema_rs", None)
        return stage.send()


def in_maintenance(stage: Stage) -> Any:
    maintenance.begin(actor=of_shell(), refuses_jobs=True)
    return stage.send()


def again_with_the_same_key(stage: Stage) -> Any:
    said = stage.usual
    first = said._replace(body=said.body | {"idempotency_key": "k", "atomicity": "partial"})
    stage.send(said=first)
    return stage.send(said=first._replace(body=first.body | {"atomicity": "atomic"}))


def too_many(stage: Stage) -> Any:
    said = stage.usual
    name = "jobs" if "jobs" in said.body else "job_ids"
    twice = said._replace(body={name: said.body[name] * 2})
    return stage.send(said=twice, options={"MAX_BULK": 1})


def unique_and_there(stage: Stage) -> dict[str, Any]:
    said = {"unique": {"keys": ["type"]}, "queue": "default"}
    engine.enqueue([new_job({"type": "a.b", "args": []} | said, clock.now())])
    return said


def waited_for(stage: Stage) -> Any:
    said = walk.Said("active", None, "wait=true&timeout=0")
    return stage.send(said=said)


def pruned(stage: Stage) -> Any:
    Job.objects.filter(pk=stage.scene.jobs["completed"].pk).update(
        result_ttl=timedelta(seconds=1), finished_at=ago(9)
    )
    return stage.send()


def large_result(stage: Stage) -> Any:
    return about("active", result="much more than that")(stage, {"MAX_RESULT_SIZE": 1})


def under_plain_asgi(stage: Stage) -> Any:
    """As if Django's own ASGI handler had created the request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.bindings.ojs.progress.ASGIRequest", WSGIRequest)
        return stage.send()


def without_prometheus(stage: Stage) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "prometheus_client", None)
        return stage.send()


def kept_by_the_site(stage: Stage) -> Any:
    """As if a row of the site's own protected every job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.models.querysets._kept", lambda job: Q(pk__isnull=False))
        return stage.send()


def ended_workflow(stage: Stage) -> Any:
    engine.cancel_workflow(stage.scene.workflow.pk)
    return stage.send()


def declared_by_code(stage: Stage) -> Any:
    CronJob.objects.update(declared_by="shop")
    return stage.send()


def by_another_worker(stage: Stage) -> Any:
    _, key = make_key("of another", scopes=["work"], worker_id="another")
    return stage.send(key=key)


def left_worker(stage: Stage) -> Any:
    Worker.objects.update(state="terminated")
    return stage.send()


def terminating_worker(stage: Stage) -> Any:
    Worker.objects.update(state="terminate")
    said = stage.usual
    if name_of(stage.door) == "workers.direct":
        said = said._replace(body={"directive": "running"})
    return stage.send(said=said)


LARGE = {"meta": {"a": "x" * 70_000}}
THERE: dict[tuple[str, Code], Callable[[Stage], Any]] = {}
"""Ways to make single endpoints refuse, by the names of their commands."""
ENQUEUING = ("jobs.create", "jobs.batch", "workflows.create")
for name in ENQUEUING:
    THERE |= {
        (name, (422, "queue_draining")): enqueuing(draining),
        (name, (422, "JOB_TYPE_NOT_ALLOWED")): enqueuing(picky),
        (name, (429, "QUEUE_FULL")): enqueuing(full),
        (name, (429, "TENANT_LIMIT_EXCEEDED")): enqueuing(at_its_limit),
        (name, (413, "metadata_too_large")): enqueuing(lambda _: LARGE),
        (name, (422, "validation_error")): enqueuing(strictly),
        (name, (503, "service_unavailable")): in_maintenance,
        (name, (409, "duplicate")): enqueuing(unique_and_there),
    }
THERE |= {
    (name, (422, "invalid_request")): enqueuing(
        lambda _: {"options": {"retry": {"max_attempts": -1}}}
    )
    for name in ("jobs.create", "jobs.batch", "cron.create")
}
THERE |= {
    ("workflows.create", (400, "invalid_workflow")): with_body({"type": "chain", "steps": []}),
    ("cron.create", (413, "metadata_too_large")): enqueuing(
        lambda _: {"meta": {"a": "x" * 70_000}}
    ),
    ("cron.update", (413, "metadata_too_large")): with_body(
        {"job_template": {"meta": {"a": "x" * 70_000}}}
    ),
    ("cron.create", (422, "validation_error")): enqueuing(strictly),
    ("cron.update", (422, "validation_error")): lambda stage: with_body(
        {"job_template": {"type": "a.b", "args": [1], **strictly(stage)}}
    )(stage),
    ("workers.register", (422, "validation_error")): lambda stage: about(
        "",
        recurring_schedules=[
            {"job_type": "a.b", "cron_expression": "0 3 * * *", **strictly(stage)}
        ],
    )(stage),
    ("cron.update", (422, "invalid_request")): with_body(
        {"job_template": {"options": {"retry": {"max_attempts": -1}}}}
    ),
    ("cron.destroy", (409, "conflict")): declared_by_code,
    ("checkpoint.retrieve", (409, "conflict")): by_another_worker,
    ("checkpoint.destroy", (409, "conflict")): by_another_worker,
    ("jobs.create", (404, "job_not_found")): about("", parent_id=UNKNOWN_IN_FLARE),
    ("bulk.enqueue", (503, "service_unavailable")): in_maintenance,
    ("metrics.retrieve", (501, "unsupported")): without_prometheus,
    ("metrics.retrieve", (404, "not_found")): lambda stage: stage.send(options={"METRICS": False}),
    ("reset.reset", (400, "invalid_request")): lambda stage: stage.send(
        query="x=%00", options={"CONFORMANCE_MODE": True}
    ),
    ("reset.reset", (422, "unsupported")): lambda stage: stage.send(
        headers={"OJS-Version": "2.0"}, options={"CONFORMANCE_MODE": True}
    ),
    ("results.retrieve", (408, "timeout")): waited_for,
    ("results.retrieve", (410, "RESULT_PRUNED")): pruned,
    ("jobs.cancel", (409, "conflict")): about("completed"),
    ("jobs.cancel", (409, "invalid_state")): about("completed"),
    ("jobs.activate", (409, "conflict")): about("available"),
    ("jobs.prioritize", (409, "conflict")): about("completed"),
    ("jobs.retry", (409, "conflict")): about("available"),
    ("schemas.register", (409, "conflict")): registered_twice,
    ("schemas.register", (422, "validation_error")): breaking_schema,
    ("schemas.register", (501, "unsupported")): without_jsonschema,
    ("schemas.destroy", (409, "conflict")): schema_in_use,
    ("schemas.destroy_version", (409, "conflict")): schema_in_use,
    ("codec.encode", (501, "unsupported")): without_keys("json/plain"),
    ("codec.decode", (501, "unsupported")): without_keys("binary/encrypted"),
    ("webhooks.create", (409, "conflict")): with_as_many_webhooks_as_there_may_be,
    ("webhooks.create", (501, "unsupported")): lambda stage: stage.send(
        options={"RECORD_EVENTS": False}
    ),
    ("webhooks.test", (429, "rate_limited")): while_webhooks_are_tested,
    ("webhooks.retry", (409, "conflict")): with_a_paused_webhook,
    ("webhooks.deliveries", (404, "not_found")): lambda stage: stage.send(
        query="subscription_id=sub_1"
    ),
    ("queues.create", (409, "conflict")): lambda stage: with_body({"name": stage.scene.queue})(
        stage
    ),
    ("queues.create", (422, "unsupported")): with_body(
        {"name": "other", "config": {"max_size_bytes": 1}}
    ),
    ("queues.configure", (422, "unsupported")): with_body({"max_size_bytes": 1}),
    ("queues.destroy", (409, "conflict")): with_body({"strategy": "reject"}),
    ("pools.configure", (409, "conflict")): with_an_isolated_queue,
    ("dead-letter.retry", (422, "unsupported")): with_body({"override": {"queue": "x"}}, "dead"),
    ("dead-letter.retry", (409, "conflict")): of_a_cancelled_workflow,
    ("dead-letter.retry", (409, "duplicate")): overridden(to_a_duplicate),
    ("dead-letter.retry", (413, "metadata_too_large")): overridden(lambda _: LARGE),
    ("dead-letter.retry", (422, "validation_error")): overridden(
        lambda stage: {"args": [1]} | strictly(stage)
    ),
    ("dead-letter.retry", (422, "queue_draining")): overridden(draining, "default"),
    ("dead-letter.retry", (422, "JOB_TYPE_NOT_ALLOWED")): overridden(picky, "default"),
    ("dead-letter.retry", (429, "QUEUE_FULL")): overridden(full, "default"),
    ("dead-letter.destroy", (409, "conflict")): kept_by_the_site,
    ("workflows.cancel", (409, "conflict")): ended_workflow,
    ("checkpoint.save", (409, "conflict")): about("completed"),
    ("checkpoint.save", (413, "envelope_too_large")): about("active", state="x" * 2**20),
    ("workers.fetch", (404, "not_found")): with_body({"pool": "of nobody"}),
    ("workers.ack", (409, "conflict")): about("completed"),
    ("workers.ack", (409, "invalid_state")): about("completed"),
    ("workers.ack", (413, "RESULT_TOO_LARGE")): large_result,
    ("workers.nack", (409, "conflict")): about("completed"),
    ("workers.heartbeat", (409, "invalid_state")): about("completed"),
    ("workers.quiet", (409, "conflict")): left_worker,
    ("workers.resume", (409, "conflict")): terminating_worker,
    ("workers.terminate", (409, "conflict")): left_worker,
    ("workers.direct", (409, "conflict")): terminating_worker,
    ("workers.destroy", (409, "conflict")): lambda stage: stage.send(),
    ("live.of_channel", (404, "not_found")): lambda stage: stage.send(query="channel=queue:none"),
    ("live.socket", (426, "invalid_request")): lambda stage: stage.send(),
}
for name in ("of_job", "of_queue", "of_channel"):
    THERE[f"live.{name}", (429, "rate_limited")] = lambda stage: stage.send(
        options={"REALTIME_CONNECTIONS": 0}
    )
    THERE[f"live.{name}", (501, "unsupported")] = lambda stage: stage.send()
THERE["progress.stream", (501, "unsupported")] = under_plain_asgi
for name in ("enqueue", "cancel", "retry", "delete_finished"):
    THERE[f"bulk.{name}", (409, "conflict")] = again_with_the_same_key
    THERE[f"bulk.{name}", (413, "BATCH_SIZE_EXCEEDED")] = too_many


@pytest.mark.slow
@pytest.mark.django_db
def test_every_refusal_that_is_listed_can_happen(settings):
    settings.OJS = OPTIONS
    everything, nothing = Kind("everything"), Kind("nothing", [])
    keys = {"everything": everything.key(), "nothing": nothing.key()}
    s = scene(everything)
    doors = doors_by_path()
    never: dict[str, list[Any]] = defaultdict(list)
    for method, path, code in listed():
        door = doors[method, path]
        ways = [*EVERYWHERE.get(code, ()), *filter(None, [THERE.get((name_of(door), code))])]
        seen = []
        for provoke in ways:
            with transaction.atomic(using=alias()):
                seen.append(refused_with(provoke(Stage(door, s, keys))))
                transaction.set_rollback(True, using=alias())
            forget_keys()
            engine.forget_queues()
            if seen[-1] == code:
                break
        else:
            never[f"{method} {path} ({name_of(door)})"].append((code, seen))

    assert not never, "\n".join(f"{where}: {what}" for where, what in never.items())


WITHOUT_A_QUERY = {"documentation.openapi_json", "documentation.docs", "reset.reset"}
"""Documents for readers, and what is not there."""


@pytest.mark.slow
@pytest.mark.django_db
def test_every_endpoint_refuses_a_parameter_that_it_does_not_have(settings):
    settings.OJS = OPTIONS
    everything = Kind("everything")
    keys = {"everything": everything.key()}
    s = scene(everything)
    doors = [door for door in walk.doors() if name_of(door) not in WITHOUT_A_QUERY]
    accepted: dict[str, Any] = {}

    for door in doors:
        with transaction.atomic(using=alias()):
            reply = Stage(door, s, keys).send(query="nonsense=1")
            transaction.set_rollback(True, using=alias())
        if refused_with(reply) != (400, "invalid_request") or b"nonsense" not in reply.content:
            accepted[f"{door.method} {door.path}"] = (reply.status_code, reply.content[:200])

    assert len(doors) > 100
    assert not accepted
