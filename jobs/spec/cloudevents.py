"""CloudEvents (OJS CloudEvents interoperability): events written as such, and jobs made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote, unquote

from django.core.exceptions import ImproperlyConfigured

from ..conf import ojs_settings
from ..errors import NotInstalled, OJSError
from .fields import refuse, wrong_type
from .jsonable import jsonable
from .lifecycle import State
from .timestamps import parse_timestamp
from .traces import parent_of
from .unique_policy import UniquePolicy, unique_key
from .validation import NewJob, new_job

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
JSON_TYPE = "application/json"
OWN_TYPE = "application/openjobspec+json"
EVENTS = "events"
"""The member of a parsed body under which a batch is."""
ATTRIBUTES = ("specversion", "id", "type", "source", "subject", "time", "datacontenttype")
REQUIRED = ("specversion", "id", "type", "source")
LONGEST = 1024
PASS = "pass-through"
SOMETIME = datetime(2000, 1, 1, tzinfo=UTC)
"""Triggers are checked before anything is enqueued: what they say must fit at any time."""


# Writing


def of_event(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the envelope of an event as a CloudEvent in structured mode (§5)."""
    site = ojs_settings.SITE_URL.rstrip("/")
    own = ojs_settings.CLOUDEVENTS_SOURCE or (f"{site}/ojs/v1" if site else "")
    subject = document.get("subject")
    return {
        "specversion": "1.0",
        "id": document["id"],
        "type": f"{ojs_settings.CLOUDEVENTS_TYPE_PREFIX}{document['type']}",
        "source": own or quote(document["source"], safe=":/@"),
        "time": document["time"],
        **({"subject": subject} if subject else {}),
        "datacontenttype": JSON_TYPE,
        "data": document["data"],
    }


def in_headers(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of a CloudEvent as headers of a request in binary mode."""
    headers = {
        f"ce-{name}": quote(str(event[name]), safe="!#$&'()*+,/:;=?@[]~ ")
        for name in ATTRIBUTES
        if name in event and name != "datacontenttype"
    }
    return headers | {"Content-Type": JSON_TYPE}


# Reading


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """One that was received."""

    id: str
    type: str
    source: str
    subject: str
    time: str
    data: Any
    traceparent: str = ""

    @property
    def attributes(self) -> dict[str, Any]:
        """The event as paths of a trigger see it."""
        named = {"id": self.id, "type": self.type, "source": self.source}
        return named | {"subject": self.subject, "time": self.time, "data": self.data}


def media_type(meta: Mapping[str, Any]) -> str:
    text: str = meta.get("CONTENT_TYPE") or ""
    return text.partition(";")[0].strip().lower()


def is_event(meta: Mapping[str, Any]) -> bool:
    """Whether a request brings CloudEvents, in whichever mode.

    One with this binding's own media type does not, whatever its headers (§9.1).
    """
    given = media_type(meta)
    return given in (STRUCTURED, BATCHED) or ("HTTP_CE_TYPE" in meta and given != OWN_TYPE)


def is_structured(meta: Mapping[str, Any]) -> bool:
    """Whether the body of a request is a CloudEvent."""
    return media_type(meta) == STRUCTURED


def is_batch(meta: Mapping[str, Any]) -> bool:
    return media_type(meta) == BATCHED


def read(meta: Mapping[str, Any], document: Any) -> CloudEvent:
    """Read the CloudEvent of a request: the body is the event, or its data (§9.3).

    Raises:
        InvalidRequest: it is not a CloudEvent 1.0 with JSON data.
    """
    if is_structured(meta):
        return read_structured(document)
    named = {
        name: jsonable(unquote(meta[key]), name)
        for name in (*ATTRIBUTES, "traceparent")
        if (key := f"HTTP_CE_{name.upper()}") in meta
    }
    return read_structured(named | ({} if document is None else {"data": document}))


def read_structured(document: Any, place: str = "") -> CloudEvent:
    """
    Args:
        place: of the event in a batch.

    Raises:
        InvalidRequest: it is not a CloudEvent 1.0 with JSON data.
    """
    if type(document) is not dict:
        raise wrong_type(place, "object", document)
    texts: dict[str, str] = {}
    for name in (*ATTRIBUTES, "traceparent"):
        value = document.get(name)
        if value is None:
            value = ""
        if type(value) is not str:
            raise wrong_type(name, "string", value)
        if not value and name in REQUIRED:
            raise refuse(name, f"A CloudEvent needs the attribute '{name}'.", validation="required")
        if not value and name == "subject" and document.get(name) is not None:
            raise refuse(name, "The 'subject' attribute of a CloudEvent must not be empty.")
        if len(value) > LONGEST:
            raise refuse(name, f"The '{name}' attribute is longer than {LONGEST} characters.")
        texts[name] = value
    if texts["specversion"] != "1.0":
        raise refuse("specversion", f"CloudEvents 1.0 are read, not {texts['specversion']!r}.")
    if "data_base64" in document:
        raise refuse("data_base64", "Only JSON can become arguments: send 'data'.")
    if document.get("time") is not None:
        try:
            parse_timestamp(texts["time"])
        except ValueError as problem:
            raise refuse("time", str(problem), validation="format") from None
    return CloudEvent(
        texts["id"],
        texts["type"],
        texts["source"],
        texts["subject"],
        texts["time"],
        document.get("data"),
        texts["traceparent"],
    )


# Triggers


def job_of(event: CloudEvent, now: datetime) -> NewJob:
    """Return the job that a CloudEvent triggers (§6), once for its id and source (§8.4).

    Raises:
        InvalidRequest: nothing is triggered by it, or its data does not fit.
        NotInstalled: the trigger has a JSONPath, and the extra `cloudevents` is not installed.
    """
    trigger = _trigger_of(event)
    meta = {"trigger_event_id": event.id, "trigger_source": event.source}
    if event.subject:
        meta["trigger_subject"] = event.subject
    if event.time:
        meta["trigger_time"] = event.time
    if parent_of(event.traceparent):
        meta["traceparent"] = event.traceparent
    args = _args(event, trigger.get("transform") or PASS)
    job = new_job(_document(trigger, args) | {"meta": meta}, now)
    key = unique_key({"cloudevent": [event.source, event.id]})
    window = ojs_settings.CLOUDEVENTS_WINDOW
    job.unique = UniquePolicy(key, tuple(State), window, "ignore")
    return job


def _document(trigger: Mapping[str, Any], args: list[Any]) -> dict[str, Any]:
    options = dict(trigger.get("options") or {})
    if trigger.get("queue"):
        options["queue"] = trigger["queue"]
    return {"type": trigger["job_type"], "args": args, "options": options}


def _trigger_of(event: CloudEvent) -> Mapping[str, Any]:
    for trigger in ojs_settings.CLOUDEVENTS_TRIGGERS:
        if _matches(trigger.get("match") or {}, event):
            found: Mapping[str, Any] = trigger
            return found
    prefix = ojs_settings.CLOUDEVENTS_TRIGGER_PREFIX
    if prefix and event.type.startswith(prefix) and event.type != prefix:
        return {"job_type": event.type.removeprefix(prefix)}
    raise refuse(
        "type",
        f"No job is triggered by CloudEvents of the type {event.type!r} from {event.source!r}.",
        validation="enum",
    )


def _matches(match: Mapping[str, str], event: CloudEvent) -> bool:
    return (
        _fits(match.get("type"), event.type)
        and _fits(match.get("source"), event.source)
        and ("subject" not in match or fnmatchcase(event.subject, match["subject"]))
    )


def _fits(pattern: str | None, text: str) -> bool:
    if pattern is None:
        return True
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _args(event: CloudEvent, transform: Any) -> list[Any]:
    """Apply a transformation (§6.3). `args` is an array, so an object is its only element."""
    if transform == PASS or transform.get("mode") == PASS:
        found = event.data
    elif transform["mode"] == "jsonpath":
        found = _first(transform["path"], event)
    else:
        found = {name: _first(path, event) for name, path in transform["mapping"].items()}
    if found is None:
        return []
    return found if type(found) is list else [found]


def _first(path: str, event: CloudEvent) -> Any:
    """Return what a JSONPath of the whole event finds; a list if that is several values."""
    found = compiled(path).findall(event.attributes)
    if not found:
        raise refuse("data", f"The CloudEvent has nothing at {path}.", validation="required")
    return found[0] if len(found) == 1 else found


def compiled(path: str) -> Any:
    """
    Raises:
        NotInstalled: the extra `cloudevents` is not installed.
        ImproperlyConfigured: it is not a JSONPath.
    """
    try:
        import jsonpath
    except ImportError:
        raise NotInstalled(
            "This server cannot read JSONPath.", hint="pip install 'django-ojs[cloudevents]'"
        ) from None
    try:
        return jsonpath.compile(path)
    except jsonpath.JSONPathError as problem:
        raise ImproperlyConfigured(f"{path!r} is not a JSONPath: {problem}") from None


TRIGGER = frozenset({"match", "job_type", "queue", "transform", "options"})
MATCH = frozenset({"type", "source", "subject"})


def check_triggers(triggers: Sequence[Any]) -> None:
    """
    Raises:
        ImproperlyConfigured: one of them is not a trigger; the message says which and why.
    """
    for index, trigger in enumerate(triggers):
        place = f'OJS["CLOUDEVENTS_TRIGGERS"][{index}]'
        if not isinstance(trigger, Mapping) or not isinstance(trigger.get("job_type"), str):
            raise ImproperlyConfigured(f"{place} needs a job_type.")
        match = trigger.get("match")
        if not isinstance(match, Mapping) or not match or match.keys() - MATCH:
            raise ImproperlyConfigured(f"{place}: match names {', '.join(sorted(MATCH))}.")
        if trigger.keys() - TRIGGER:
            raise ImproperlyConfigured(f"{place} has only {', '.join(sorted(TRIGGER))}.")
        _check_transform(trigger.get("transform") or PASS, place)
        if not isinstance(trigger.get("options") or {}, Mapping):
            raise ImproperlyConfigured(f"{place}: options must be a dictionary.")
        try:
            new_job(_document(trigger, []), SOMETIME)
        except OJSError as refusal:
            raise ImproperlyConfigured(f"{place}: {refusal.message}") from None


def _check_transform(transform: Any, place: str) -> None:
    if transform == PASS:
        return
    mode = transform.get("mode") if isinstance(transform, Mapping) else None
    if mode == "jsonpath" and isinstance(transform.get("path"), str):
        paths = [transform["path"]]
    elif mode == "template" and isinstance(transform.get("mapping"), Mapping):
        paths = list(transform["mapping"].values())
    elif mode == PASS:
        paths = []
    else:
        raise ImproperlyConfigured(
            f'{place}: transform is "{PASS}", or has the mode "jsonpath" with a path, or '
            '"template" with a mapping.'
        )
    for path in paths:
        try:
            compiled(path)
        except (NotInstalled, ImproperlyConfigured) as problem:
            raise ImproperlyConfigured(f"{place}: {problem}") from None
