"""A request gets the same response on the fast path, also past Django's handler, and off it."""

from __future__ import annotations

import gzip
import json
from http import HTTPStatus
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from django.core.wsgi import get_wsgi_application
from django.db import DatabaseError, OperationalError
from django.urls import get_resolver, resolve

from jobs.access import refusals
from jobs.engine import forget_queues
from jobs.http.authentication import forget_keys, make_key
from jobs.http.fast_path import FastView
from jobs.models import Event, Job, OperatorAction, Queue, RateLimit
from jobs.spec.worker_ids import qualified
from ojs_project.bypass import Bypass
from tests.database import connection
from tests.factories import JobFactory, QueueFactory, WorkerFactory
from tests.once import once_is_enough
from workers.bindings.flare import ids
from workers.models import Worker

from .wsgi import answered, environment, plain

pytestmark = once_is_enough

HELD = "01931f6c-0000-7000-8000-000000000001"
OTHERS = "01931f6c-0000-7000-8000-000000000002"
"""Held by another worker."""
ACMES = "01931f6c-0000-7000-8000-000000000005"
"""Held by the worker `w` of the project `acme`."""
NOBODYS = "01931f6c-0000-7000-8000-000000000003"
WAITING = "01931f6c-0000-7000-8000-000000000004"
JOB = {"type": "email.send", "args": [1], "queue": "known"}
FLARE_JOB = {"job_type": "email.send", "payload": {"a": 1}, "queue": "known"}
ERROR = {"code": "handler_error", "message": "It broke."}
POLL = {"worker_id": "w", "queues": ["known"], "capacity": 1}
LIMITED = JOB | {"rate_limit": {"key": "k", "limit": 3, "period": "PT1M"}}
UNIQUE = JOB | {"unique": {"keys": ["type"], "on_conflict": "ignore"}}


class Asked(NamedTuple):
    """A request: POST by default, with a key that has all scopes."""

    path: str
    body: Any = b""
    headers: dict[str, str] = {}
    method: str = "POST"
    key: str = "everything"


def post(path: str, body: Any = b"", key: str = "everything", **headers: str) -> Asked:
    return Asked(f"/ojs/v1/{path}", body, headers, key=key)


def flare(path: str, body: Any = b"", key: str = "everything", **headers: str) -> Asked:
    return Asked(f"/flare/v1/{path}", body, headers, key=key)


GOOD = {
    "a job": post("jobs", JOB),
    "a job in a queue that is full soon": post("jobs", JOB | {"queue": "pressed"}),
    "a job with a rate limit": post("jobs", LIMITED),
    "a job that is unique": post("jobs", UNIQUE),
    "jobs": post("jobs/batch", {"jobs": [JOB, JOB, UNIQUE]}),
    "a fetch": post("workers/fetch", {"queues": ["known"], "worker_id": "w"}),
    "a fetch of nothing": post("workers/fetch", {"queues": ["none"]}),
    "a fetch with outcomes": post(
        "jobs/fetch",
        {"queues": ["known"], "worker_id": "w", "acks": [{"job_id": HELD}], "nacks": []},
    ),
    "an ack": post("workers/ack", {"job_id": HELD, "worker_id": "w", "result": {"a": [1]}}),
    "an ack at the job's address": post(f"jobs/{HELD}/ack", {"worker_id": "w"}),
    "acks": post("workers/ack", {"acks": [{"job_id": HELD}, {"job_id": NOBODYS}]}),
    "a nack": post("workers/nack", {"job_id": HELD, "worker_id": "w", "error": ERROR}),
    "a nack at the job's address": post(f"jobs/{HELD}/nack", {"error": "broken"}),
    "nacks": post("workers/fail", {"nacks": [{"job_id": HELD, "error": "broken"}]}),
    "a heartbeat": post(
        "workers/heartbeat",
        {"worker_id": "w", "state": "running", "active_job_ids": [HELD, NOBODYS]},
        HTTP_USER_AGENT="a client",
    ),
    "a Flare job": flare("jobs", FLARE_JOB),
    "a Flare poll": flare("workers/poll", POLL),
    "a Flare ack": flare(
        "workers/ack", {"worker_id": "w", "job_id": ids.write(UUID(HELD)), "status": "succeeded"}
    ),
    "a Flare heartbeat": flare(
        "workers/heartbeat", {"worker_id": "w", "job_id": ids.write(UUID(HELD)), "progress": 0.5}
    ),
}
# `w` is also the id of another worker, so this one has a different stored id.
OF_PROJECT = {
    "a heartbeat of a project": post(
        "workers/heartbeat", {"worker_id": "w", "active_job_ids": [ACMES, HELD]}, key="acme"
    ),
    "a fetch of a project": post("workers/fetch", {"queues": ["acme"], "worker_id": "w"}, "acme"),
    "a fetch of a project, with acks": post(
        "workers/fetch",
        {"queues": ["acme"], "worker_id": "w", "acks": [{"job_id": ACMES}]},
        "acme",
    ),
    "a fetch of a project, with nacks": post(
        "workers/fetch",
        {"queues": ["acme"], "worker_id": "w", "nacks": [{"job_id": ACMES, "error": "broken"}]},
        "acme",
    ),
    "an ack of a project": post("workers/ack", {"job_id": ACMES, "worker_id": "w"}, "acme"),
    "an ack of a project, at the job's address": post(
        f"jobs/{ACMES}/ack", {"worker_id": "w"}, "acme"
    ),
    "acks of a project": post(
        "workers/ack", {"worker_id": "w", "acks": [{"job_id": ACMES}]}, "acme"
    ),
    "a nack of a project": post(
        "workers/nack", {"job_id": ACMES, "worker_id": "w", "error": ERROR}, "acme"
    ),
    "nacks of a project": post(
        "workers/nack", {"nacks": [{"job_id": ACMES, "worker_id": "w", "error": "x"}]}, "acme"
    ),
    "a Flare poll of a project": flare("workers/poll", POLL | {"queues": ["acme"]}, "acme"),
    "a Flare ack of a project": flare(
        "workers/ack",
        {"worker_id": "w", "job_id": ids.write(UUID(ACMES)), "status": "succeeded"},
        "acme",
    ),
    "a Flare heartbeat of a project": flare(
        "workers/heartbeat", {"worker_id": "w", "job_id": ids.write(UUID(ACMES))}, "acme"
    ),
}
BAD = {
    "no job": post("jobs", {"type": 1}),
    "a wrong id": post("jobs/no-id/ack", {}),
    "two jobs": post(f"jobs/{HELD}/ack", {"job_id": OTHERS}),
    "another's job": post("workers/ack", {"job_id": OTHERS, "worker_id": "w"}),
    "no such job": post("workers/ack", {"job_id": NOBODYS}),
    "no queues": post("workers/fetch", {}),
    "a full queue": post("jobs", JOB | {"queue": "full"}),
    "a full queue that is waited for": post(
        "jobs", JOB | {"queue": "full"}, HTTP_OJS_BLOCK_TIMEOUT="0"
    ),
    "too many jobs": post("jobs/batch", {"jobs": [JOB] * 4}),
    "a bad retry policy": post("jobs", JOB | {"retry": {"max_attempts": -1}}),
    "no such Flare job": flare(
        "workers/heartbeat", {"worker_id": "w", "job_id": ids.write(UUID(NOBODYS))}
    ),
    "a wrong Flare id": flare("workers/ack", {"worker_id": "w", "job_id": "x"}),
    "no key": post("jobs", JOB, key=""),
    "a wrong key": post("jobs", JOB, HTTP_AUTHORIZATION="Bearer nobodys"),
    "no bearer": post("jobs", JOB, HTTP_AUTHORIZATION="Basic x"),
    "a key that may not": post("jobs", JOB, key="works"),
    "a Flare key that may not": flare("jobs", FLARE_JOB, key="works"),
    "no Flare key": flare("workers/poll", POLL, key=""),
    "a key of another worker": post("workers/fetch", {"queues": ["known"]} | POLL, key="other"),
    "a key of another label": post("workers/ack", {"job_id": HELD, "worker_id": "w"}, key="gpu"),
    "a key of another project": post(f"jobs/{HELD}/ack", {"worker_id": "p"}, key="acme"),
    "a wrong body about another project's job": post(
        f"jobs/{HELD}/ack", {"attempt": "x"}, key="acme"
    ),
    "another project's job": post("workers/ack", {"job_id": HELD}, key="acme"),
    "another method": Asked("/ojs/v1/workers/fetch", method="GET"),
    "options": Asked("/ojs/v1/jobs", method="OPTIONS"),
    "another site's page, with a key": post("jobs", JOB, HTTP_ORIGIN="https://evil.example"),
}
GZIPPED = {"HTTP_CONTENT_ENCODING": "gzip"}
BODIES: dict[str, tuple[Any, dict[str, str]]] = {
    "empty": (b"", {}),
    "blank": (b" \n", {}),
    "a form without anything": (b"", {"CONTENT_TYPE": "application/x-www-form-urlencoded"}),
    "a form": (b"a=1", {"CONTENT_TYPE": "application/x-www-form-urlencoded"}),
    "parts": (b"a", {"CONTENT_TYPE": "multipart/form-data; boundary=x"}),
    "text": (b"{}", {"CONTENT_TYPE": "text/plain"}),
    "of no type": (b"{}", {"CONTENT_TYPE": ""}),
    "of another charset": (b"{}", {"CONTENT_TYPE": "application/json; charset=utf-16"}),
    "a list": ([], {}),
    "half of an object": (b"{", {}),
    "not UTF-8": (b'{"a":"\xff"}', {}),
    "a key twice": (b'{"type":"a","type":1}', {}),
    "a NUL": (b'{"a":{"b":["\\u0000"]}}', {}),
    "a number too large": (b'{"a":[{"b":12345678901234567890}]}', {}),
    "too deep": (b'{"a":' + b"[" * 201 + b"]" * 201 + b"}", {}),
    "too large": (b'{"a":"' + b"x" * 2000 + b'"}', {}),
    "announced as too large": (b"{}", {"CONTENT_LENGTH": "9999999"}),
    "of an unreadable length": (b"{}", {"CONTENT_LENGTH": "x"}),
    "gzipped": (gzip.compress(json.dumps(JOB).encode()), GZIPPED),
    "a gzip bomb": (gzip.compress(b'{"a":"' + b"x" * 2000 + b'"}'), GZIPPED),
    "half of a gzip file": (gzip.compress(b"{}")[:-4], GZIPPED),
    "not gzipped": (b"{}", GZIPPED),
    "compressed otherwise": (b"{}", {"HTTP_CONTENT_ENCODING": "br"}),
}
HEADERS: dict[str, dict[str, str]] = {
    "another version": {"HTTP_OJS_VERSION": "2.0"},
    "our version": {"HTTP_OJS_VERSION": "1.0"},
    "no version": {"HTTP_OJS_VERSION": "x"},
    "an extension": {"HTTP_OJS_REQUIRES_EXTENSION": "urn:ojs:ext:results, urn:ojs:ext:progress"},
    "no extension": {"HTTP_OJS_REQUIRES_EXTENSION": "urn:ojs:ext:results,urn:ojs:ext:nothing"},
    "plain JSON": {"HTTP_ACCEPT": "application/json"},
    "both": {"HTTP_ACCEPT": "application/json, application/openjobspec+json"},
    "pages": {"HTTP_ACCEPT": "text/html"},
    "REST framework's parameter": {"QUERY_STRING": "format=html"},
    "an id": {"HTTP_X_REQUEST_ID": "mine"},
    "an id that is none": {"HTTP_X_REQUEST_ID": "a b"},
    "a NUL": {"QUERY_STRING": "a=%00"},
    "another host": {"HTTP_HOST": "evil.example"},
    "another host, as an SDK": {"HTTP_HOST": "evil.example", "HTTP_OJS_VERSION": "1.0"},
    "another method's name": {"HTTP_X_HTTP_METHOD_OVERRIDE": "DELETE"},
    "a session": {"HTTP_COOKIE": "sessionid=1; csrftoken=1"},
}
HOT = [post("jobs", JOB), post("workers/heartbeat", {"worker_id": "w"}), flare("jobs", FLARE_JOB)]
REQUESTS = {
    "good": GOOD,
    "good, of a project": OF_PROJECT,
    "bad": BAD,
    "bodies": {
        f"{asked.path}: a body that is {name}": asked._replace(body=body, headers=headers)
        for name, (body, headers) in BODIES.items()
        for asked in HOT
    },
    "headers": {
        f"{asked.path}: {name}": asked._replace(headers=headers)
        for name, headers in HEADERS.items()
        for asked in HOT
    },
}
WAYS = ("past Django's handler", "in Django's handler", "as REST framework does")
TOO_LARGE = f"413 {HTTPStatus(413).phrase}"
OPTIONS = {"FLARE": {"ENABLED": True}, "MAX_BODY_SIZE": 1000, "MAX_BATCH": 3}


@pytest.fixture
def keys(transactional_db) -> dict[str, str]:
    made = {
        "everything": make_key("everything", scopes=["produce", "work", "operate"]),
        "works": make_key("works", scopes=["work"]),
        "other": make_key("other", scopes=["work"], worker_id="other"),
        "gpu": make_key("gpu", scopes=["work"], label="gpu"),
        "acme": make_key("acme", scopes=["produce", "work"], project="acme"),
    }
    return {name: f"Bearer {key}" for name, (_, key) in made.items()} | {"": ""}


def begin_anew() -> None:
    """The same jobs, queues and workers for each request, whatever earlier ones have done."""
    for model in (Event, Job, Worker, Queue, RateLimit, OperatorAction):
        model._default_manager.all().delete()
    forget_keys()
    forget_queues()
    refusals.forget()
    WorkerFactory(worker_id="w", labels=["cpu"])
    QueueFactory(name="known")
    QueueFactory(name="pressed", max_depth=1)
    QueueFactory(name="full", max_depth=1)
    JobFactory(queue="full")
    JobFactory(queue="known", id=WAITING)
    JobFactory(queue="taken", id=HELD, active=True, reserved_by="w", retry={"jitter": False})
    JobFactory(queue="taken", id=OTHERS, active=True, reserved_by="another")
    name = qualified("w", "acme")
    WorkerFactory(worker_id=name, project="acme")
    JobFactory(queue="acme", project="acme")
    JobFactory(
        queue="acme",
        id=ACMES,
        project="acme",
        active=True,
        reserved_by=name,
        retry={"jitter": False},
    )


@pytest.fixture
def applications(settings) -> dict[str, Any]:
    """The WSGI application of each way."""
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.OJS = OPTIONS
    django = get_wsgi_application()
    ways = (Bypass(django), django, off_the_fast_path(django, settings))
    return dict(zip(WAYS, ways, strict=True))


def off_the_fast_path(application: Any, settings: Any) -> Any:
    def serve(environ, start_response):
        settings.OJS = settings.OJS | {"FAST_PATH": False}
        try:
            return application(environ, start_response)
        finally:
            settings.OJS = settings.OJS | {"FAST_PATH": True}

    return serve


def left() -> dict[str, list[Any]]:
    """The effects of a request on the database."""
    rows = {
        "jobs": Job.objects.order_by("queue", "created_at", "pk").values_list(
            "type", "queue", "state", "attempt", "args", "result", "reserved_by", "project"
        ),
        "workers": Worker.objects.order_by("pk").values_list(
            "pk", "state", "protocol", "version", "project"
        ),
        "events": Event.objects.order_by("pk").values_list("type", "queue", "worker_id"),
        "refusals": OperatorAction.objects.order_by("pk").values_list("actor", "selection"),
    }
    return {name: list(found) for name, found in rows.items()}


def answers(asked: Asked, keys: dict[str, str], applications: dict[str, Any]) -> list[Any]:
    """The response on each path, and the effects."""
    found = []
    headers = {"HTTP_AUTHORIZATION": keys[asked.key]} | asked.headers
    for application in applications.values():
        begin_anew()
        request = environment(asked.method, asked.path, asked.body, headers)
        found.append((plain(answered(application, request)), left()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", REQUESTS)
def test_every_way_gives_the_same_answer_and_does_the_same(kind, keys, applications):
    wrong = {}
    for name, asked in REQUESTS[kind].items():
        first, *others = answers(asked, keys, applications)
        if others != [first] * len(others):
            wrong[name] = first, others
        (status, _, body), _ = first
        assert status[:3] not in ("500", "503"), name
        assert kind.startswith("good") <= (status[0] == "2"), (name, body)
        assert b"@/" not in body, "a stored name is not the client's"

    assert wrong == {}


@pytest.mark.slow
def test_a_site_without_our_middleware_gives_the_same_answers_too(keys, settings):
    settings.MIDDLEWARE = []
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.OJS = OPTIONS
    django = get_wsgi_application()
    ways = {"on": django, "off": off_the_fast_path(django, settings)}
    for name, asked in REQUESTS["headers"].items():
        fast, slow = answers(asked, keys, ways)

        assert fast == slow, name
        (status, _, _), _ = fast
        refused = any(word in name for word in ("host", "NUL", "parameter"))
        assert (status[:3] == "400") == refused, name


@pytest.mark.parametrize("error", [OperationalError, DatabaseError, KeyError])
def test_what_breaks_is_answered_the_same(error, keys, applications):
    def fail(execute, sql, parameters, many, context):
        raise error("password=hunter2")

    for asked in HOT:
        found = []
        for application in applications.values():
            forget_keys()
            headers = {"HTTP_AUTHORIZATION": keys[asked.key]}
            request = environment(asked.method, asked.path, asked.body, headers)
            with connection.execute_wrapper(fail):
                found.append(plain(answered(application, request)))

        status, _, body = found[0]
        assert status[:3] == ("503" if error is OperationalError else "500")
        assert b"hunter2" not in body
        assert found == found[:1] * len(WAYS)


STRANGERS: dict[str, dict[str, str]] = {
    "another origin": {"HTTP_ORIGIN": "https://evil.example"},
    "our origin": {"HTTP_ORIGIN": "http://testserver"},
    "another site": {"HTTP_SEC_FETCH_SITE": "cross-site"},
    "another site's link": {
        "HTTP_SEC_FETCH_SITE": "cross-site",
        "HTTP_SEC_FETCH_MODE": "navigate",
    },
    "no type": {"CONTENT_TYPE": ""},
    "a type without asking": {"CONTENT_TYPE": "text/plain"},
    "no browser": {},
}


@pytest.mark.parametrize("name", STRANGERS)
def test_without_keys_other_sites_are_kept_off_every_way(name, keys, applications, settings):
    settings.OJS = OPTIONS | {"ALLOW_ANONYMOUS": True}
    for asked in HOT:
        first, *others = answers(
            asked._replace(key="", headers=STRANGERS[name]), keys, applications
        )

        assert others == [first] * len(others)
        (status, _, _), _ = first
        assert (status[0] == "2") == (name in ("our origin", "no browser"))


def test_a_body_without_a_length_is_read_every_way(keys, applications):
    found = []
    for application in applications.values():
        for body in (JOB, JOB | {"meta": {"a": "x" * 2000}}):
            headers = {"HTTP_AUTHORIZATION": keys["everything"]}
            request = environment("POST", "/ojs/v1/jobs", body, headers)
            del request["CONTENT_LENGTH"]
            found.append(plain(answered(application, request | {"wsgi.input_terminated": True})))

    assert [status for status, _, _ in found[:2]] == ["201 Created", TOO_LARGE]
    assert found == found[:2] * len(WAYS)


def test_every_hot_verb_is_among_them(settings):
    settings.OJS = OPTIONS
    hot = {
        (view.cls, *view.actions.values())
        for pattern in get_resolver().url_patterns[0].url_patterns
        if isinstance(view := pattern.callback, FastView) and view.method == "POST"
    }
    compared = {
        (view.cls, *view.actions.values())
        for view in (resolve(asked.path).func for asked in GOOD.values())
    }

    assert len(hot) == 10
    assert compared == hot
