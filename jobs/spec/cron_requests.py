"""What may be registered: from a JSON document to a `NewCronJob` (OJS cron §2, HTTP §13.2).

The documents write `cron` with `type`, `args` and `options` beside it, the public cases and the
command line client `expression` with a `job_template`, Ruby's client `queue` beside them.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from . import fields
from .fields import Document, inside, missing, refuse
from .schedules import InvalidSchedule, read_schedule, read_zone
from .validation import new_job


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
    """None: as it is, where a protocol has no word for it; a new one is enabled."""
    description: str = ""
    project: str = ""


NAME = re.compile(r"[a-z0-9][a-z0-9\-.]*")
SPELLINGS = ("cron", "expression", "schedule")
POLICIES = {"cancel": OverlapPolicy.CANCEL_PREVIOUS} | {
    policy.value: policy for policy in OverlapPolicy
}
TEMPLATE = ("type", "args", "meta", "options", "queue", "schema", "version")


def new_cron_job(document: Document, now: datetime) -> NewCronJob:
    """Check a registration.

    Raises:
        InvalidRequest: a field breaks its rule; `details["field"]` names it.
    """
    name = fields.required_text(document, "name", pattern=NAME)
    spelling = next((name for name in SPELLINGS if document.get(name) is not None), "cron")
    expression = fields.required_text(document, spelling)
    timezone = fields.text(document, "timezone", "UTC", longest=64) or "UTC"
    _check_schedule(spelling, expression, timezone)
    return NewCronJob(
        name=name,
        expression=expression,
        timezone=timezone,
        template=_template(document, now),
        overlap_policy=_policy(document),
        enabled=fields.boolean(document, "enabled", True),
        description=fields.text(document, "description", "", longest=2000) or "",
    )


def _check_schedule(spelling: str, expression: str, timezone: str) -> None:
    try:
        read_zone(timezone)
    except InvalidSchedule as problem:
        raise refuse("timezone", str(problem), validation="timezone") from None
    try:
        read_schedule(expression, timezone)
    except InvalidSchedule as problem:
        raise refuse(
            spelling,
            str(problem),
            validation="cron",
            rule="INVALID_CRON_EXPRESSION",
            hint="Five or six fields, @daily and the like, or '@every 30m'.",
        ) from None


def _policy(document: Document) -> OverlapPolicy:
    given = fields.text(document, "overlap_policy", "skip") or ""
    if given not in POLICIES:
        raise refuse(
            "overlap_policy",
            f"The 'overlap_policy' field must be one of {', '.join(POLICIES)}, not {given!r}.",
            validation="enum",
        )
    return POLICIES[given]


def _template(document: Document, now: datetime) -> dict[str, Any]:
    """What each job is made of; refused now rather than each time it is due (§3.5)."""
    nested = fields.mapping(document, "job_template")
    source: Document = document if nested is None else nested
    template = {name: source[name] for name in TEMPLATE if source.get(name) is not None}
    template.setdefault("args", [])
    if "type" not in template:
        raise missing("type" if nested is None else "job_template.type")
    options = fields.mapping(source, "options")
    if options and "queue" in template and options.get("queue") is not None:
        template.pop("queue")
    with contextlib.nullcontext() if nested is None else inside("job_template"):
        new_job(template, now)
    return template
