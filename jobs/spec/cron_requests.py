"""Registrations of cron jobs: from a JSON document to a `NewCronJob` (OJS cron §2, HTTP §13.2).

The documents specify `cron` with `type`, `args` and `options` beside it, the public cases and the
command line client `expression` with a `job_template`, the Ruby client `queue` beside them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import Document, inside, missing, refuse
from .members import Boolean, Choice, Members, Object, Text, optional
from .schedules import InvalidSchedule, Schedule, new_schedule, read_zone
from .validation import (
    OPTION_NAMES,
    WIRE_TYPE_PATTERN,
    Envelope,
    NestedOptions,
    NewJob,
    Options,
    new_job,
)
from .validation import (
    SPELLINGS as OPTION_SPELLINGS,
)


class OverlapPolicy(models.TextChoices):
    """What happens when a run is due and an earlier one has not finished (OJS cron §6)."""

    SKIP = "skip", _("skip")
    ALLOW = "allow", _("allow")
    CANCEL_PREVIOUS = "cancel_previous", _("cancel previous")
    ENQUEUE = "enqueue", _("enqueue")


@dataclass(frozen=True)
class NewCronJob:
    """A valid registration."""

    name: str
    expression: str
    template: dict[str, Any]
    timezone: str = "UTC"
    overlap_policy: OverlapPolicy = OverlapPolicy.SKIP
    enabled: bool | None = True
    """None: unchanged, for protocols that do not transmit it; a new cron job is enabled."""
    description: str = ""
    project: str = ""


NAME = re.compile(r"[a-z0-9][a-z0-9\-.]*")
POLICIES = {"cancel": OverlapPolicy.CANCEL_PREVIOUS} | {
    policy.value: policy for policy in OverlapPolicy
}


class Template(Members):
    """The members of each job that is enqueued."""

    type = optional(Envelope.type)
    args = optional(Envelope.args)
    meta = Envelope.meta
    options = Object(of=NestedOptions)
    queue = Options.queue
    schema = Envelope.schema
    version = Options.version


class CronRequest(Template, component="NewCronJob", either=("type", "job_template")):
    name = Text(pattern=NAME).required()
    cron = Text("Five or six fields, `@daily` and the like, or `@every 30m`.", filled=True)
    expression = Text("Another word for `cron`.", filled=True)
    schedule = Text(filled=True, hidden=True)
    timezone = Text(
        "An IANA name.", longest=64, filled=True, schema={"examples": ["Europe/Berlin"]}
    ).default("UTC")
    job_template = Object(of=Envelope)
    overlap_policy = Choice(POLICIES, details={"validation": "enum"}, unsaid=["cancel"])
    enabled = Boolean().default(True)
    description = Text(longest=2000)


class ChangeCron(Members, component="CronChange"):
    enabled = Boolean()
    cron = CronRequest.cron
    expression = CronRequest.expression
    schedule = CronRequest.schedule
    timezone = Text("An IANA name.", longest=64, filled=True)
    job_template = Object("What it leaves out stays, also in its `options`.", of=Template)
    overlap_policy = CronRequest.overlap_policy
    description = CronRequest.description


SPELLINGS = (CronRequest.cron, CronRequest.expression, CronRequest.schedule)


def new_cron_job(
    document: Document,
    now: datetime,
    *,
    type_pattern: re.Pattern[str] = WIRE_TYPE_PATTERN,
    declared: bool = False,
) -> NewCronJob:
    """Check a registration.

    Args:
        type_pattern: wider for a document that does not come from a client of OJS HTTP.
        declared: by code that worked before, and must start again when `expires_at` has passed.

    Raises:
        InvalidRequest: a field is invalid; `details["field"]` names it.
    """
    name = CronRequest.name.read(document)
    spelled = next((one for one in SPELLINGS if document.get(one.name) is not None), SPELLINGS[0])
    expression = spelled.read(document)
    if expression is None:
        raise missing(spelled.name)
    timezone = CronRequest.timezone.read(document) or "UTC"
    check_schedule(spelled.name, expression, timezone)
    return NewCronJob(
        name=name,
        expression=expression,
        timezone=timezone,
        template=_template(
            document,
            partial(new_job, now=now, type_pattern=type_pattern),
            until=None if declared else now,
        ),
        overlap_policy=CronRequest.overlap_policy.read(document) or OverlapPolicy.SKIP,
        enabled=CronRequest.enabled.read(document),
        description=CronRequest.description.read(document) or "",
    )


def changed_cron_job(document: Document, before: NewCronJob, now: datetime) -> NewCronJob:
    """Check a change of a registration; what it leaves out stays.

    Raises:
        InvalidRequest: a field is invalid; `details["field"]` names it.
    """
    spelled = next((one for one in SPELLINGS if document.get(one.name) is not None), SPELLINGS[0])
    expression = spelled.read(document) or before.expression
    timezone = ChangeCron.timezone.read(document) or before.timezone
    check_schedule(spelled.name, expression, timezone)
    template, change = before.template, ChangeCron.job_template.read(document)
    if change is not None:
        whole = {"job_template": _changed_template(template, change)}
        template = _template(whole, partial(new_job, now=now), until=now)
    description = ChangeCron.description.read(document)
    return replace(
        before,
        expression=expression,
        timezone=timezone,
        template=template,
        overlap_policy=ChangeCron.overlap_policy.read(document) or before.overlap_policy,
        enabled=ChangeCron.enabled.read(document),
        description=before.description if description is None else description,
    )


def _changed_template(template: Document, change: Document) -> dict[str, Any]:
    with inside("job_template"):
        options = Template.options.read(change) or {}
    given: set[str] = {*change, *options}
    # An option that has other spellings, or is among the options or beside them, is one option.
    given.update(*(names for names in OPTION_SPELLINGS if not given.isdisjoint(names)))
    stale = given & OPTION_NAMES
    kept = {name: value for name, value in template.items() if name not in stale}
    inner = {k: v for k, v in (template.get("options") or {}).items() if k not in stale}
    whole: dict[str, Any] = {**kept, **change}
    return whole | {"options": inner | options} if inner or options else whole


def check_schedule(
    spelling: str,
    expression: str,
    timezone: str,
    read: Callable[[str, str], Schedule] = new_schedule,
) -> None:
    """
    Args:
        read: `read_schedule` for one that is stored already.

    Raises:
        InvalidRequest: the time zone or the expression is not valid.
    """
    try:
        read_zone(timezone)
    except InvalidSchedule as problem:
        raise refuse("timezone", str(problem), validation="timezone") from None
    try:
        read(expression, timezone)
    except InvalidSchedule as problem:
        raise refuse(
            spelling,
            str(problem),
            validation="cron",
            rule="INVALID_CRON_EXPRESSION",
            hint="Five or six fields, @daily and the like, or '@every 30m'.",
        ) from None


def _template(
    document: Document, check: Callable[[Document], NewJob], until: datetime | None
) -> dict[str, Any]:
    """What each job is made of; refused now rather than each time it is due (§3.5).

    Args:
        until: refuse jobs that have expired by then.
    """
    nested = CronRequest.job_template.read(document)
    source: Document = document if nested is None else nested
    names = [*Template.members] if nested is None else [*Template.members, *OPTION_NAMES]
    template = {name: source[name] for name in names if source.get(name) is not None}
    template.setdefault("args", [])
    if "type" not in template:
        raise missing("type" if nested is None else "job_template.type")
    options = Template.options.read(source)
    if options and "queue" in template and options.get("queue") is not None:
        template.pop("queue")
    with contextlib.nullcontext() if nested is None else inside("job_template"):
        job = check(template)
        if until is not None and job.expires_at is not None and job.expires_at <= until:
            place = "expires_at" if template.get("expires_at") else "options.expires_at"
            raise refuse(place, "Each job would have expired when it is made.", validation="range")
    if options and options.get("priority") is not None:
        template["options"] = {**options, "priority": job.priority}
    elif "priority" in template:
        template["priority"] = job.priority
    return template
