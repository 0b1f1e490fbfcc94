"""The form for a cron job, and what is shown of a schedule while it is typed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..errors import OJSError
from ..models import CronJob
from ..spec.cron_requests import NewCronJob, new_cron_job
from ..spec.schedules import Interval, InvalidSchedule, read_schedule, upcoming, zone_names
from ..spec.validation import OPTION_NAMES
from ..store import clock
from . import display
from .cron_words import in_words
from .job_form import (
    WIDE,
    JSONText,
    Suggesting,
    check_options,
    other_options,
    project_field,
)

HAVE_A_FIELD = {"queue"}
RUNS = 5
YEAR = 366
"""Days in which the next change of clocks is looked for."""
EXAMPLES = ("*/15 * * * *", "0 9 * * MON-FRI", "0 3 1 * *", "@hourly", "@daily", "@every 90m")


class CronForm(forms.ModelForm):
    """Of a new cron job or an existing one; `new` is the registration that was filled in."""

    expression = forms.CharField(
        label=_("Expression"),
        max_length=255,
        widget=Suggesting(attrs=WIDE),
        help_text=_(
            "Minute, hour, day of the month, month, day of the week, and before them a second if "
            "need be; @daily and the like; or @every and a duration."
        ),
    )
    timezone = forms.CharField(
        label=_("Time zone"), max_length=64, initial="UTC", widget=Suggesting(attrs=WIDE)
    )
    type = forms.CharField(label=_("Type"), max_length=255, widget=Suggesting(attrs=WIDE))
    queue = forms.CharField(
        label=_("Queue"), max_length=128, initial="default", widget=Suggesting(attrs=WIDE)
    )
    args = JSONText(
        label=_("Arguments"), rows=6, kind="array", initial=[], help_text=_("A JSON array.")
    )
    meta = JSONText(label=_("Meta"), rows=3, kind="object", initial={}, required=False)
    options = other_options()
    project = project_field()
    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=500, widget=forms.TextInput(attrs=WIDE)
    )
    new: NewCronJob

    class Meta:
        model = CronJob
        fields = ("name", "description", "expression", "timezone", "overlap_policy", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cron = kwargs.get("instance")
        if cron is not None:
            kwargs["initial"] = _template_of(cron) | (kwargs.get("initial") or {})
        super().__init__(*args, **kwargs)
        if cron is not None:
            del self.fields["project"]
        self._suggest("expression", EXAMPLES)
        self._suggest("timezone", sorted(zone_names()))

    def _suggest(self, name: str, suggestions: Any) -> None:
        widget: Any = self.fields[name].widget
        widget.suggestions = suggestions

    def clean_options(self) -> dict[str, Any]:
        before = (self.instance.template or {}) if self.instance.pk else {}
        return check_options(
            self.cleaned_data["options"],
            have_a_field=HAVE_A_FIELD,
            # A client of the API may have options of its own.
            kept=before.get("options") or (),
        )

    def clean(self) -> None:
        """Check the whole as the API would; a refusal appears at its field."""
        super().clean()  # that the name is not taken
        if self.errors:
            return
        try:
            self.new = new_cron_job(self._document(), clock.now())
        except OJSError as refusal:
            named = str(refusal.details.get("field", "")).split("[")[0]
            field = {"cron": "expression", "options.queue": "queue"}.get(named)
            field = field or named.partition(".")[0]
            if field in OPTION_NAMES and field not in self.fields:
                field = "options"
            self.add_error(field if field in self.fields else None, refusal.message)
            return
        if "enabled" not in self.fields:
            self.new = replace(self.new, enabled=None)
        # It is chosen once: afterwards the jobs that were made belong to it.
        self.new = replace(self.new, project=self.cleaned_data.get("project", ""))

    def _document(self) -> dict[str, Any]:
        data = self.cleaned_data
        kept = {}
        if self.instance.pk and self.instance.template:
            template = self.instance.template
            kept = {name: template[name] for name in ("schema", "version") if name in template}
        return kept | {
            "name": data["name"] if "name" in self.fields else self.instance.pk,
            "cron": data["expression"],
            "timezone": data["timezone"],
            "overlap_policy": data["overlap_policy"],
            "description": data["description"],
            "enabled": data.get("enabled", True),
            "type": data["type"],
            "args": data["args"],
            "meta": None if data["meta"] == {} else data["meta"],
            "options": {**data["options"], "queue": data["queue"]},
        }


def _template_of(cron: CronJob) -> dict[str, Any]:
    """What the form shows of the jobs that a cron job makes."""
    template: dict[str, Any] = cron.template or {}
    options = dict(template.get("options") or {})
    queue = options.pop("queue", None) or template.get("queue") or "default"
    return {
        "type": template.get("type", ""),
        "queue": queue,
        "args": template.get("args", []),
        "meta": template.get("meta") or {},
        "options": options or "",
    }


def preview(expression: str, zone_name: str) -> dict[str, Any]:
    """What a schedule means: `{"meaning": …, "runs": […], "notes": […]}`, or `{"problem": …}`."""
    try:
        schedule = read_schedule(expression, zone_name)
    except InvalidSchedule as problem:
        return {"problem": str(problem)}
    zone = ZoneInfo(zone_name)
    runs = [_run(moment, zone) for moment in upcoming(schedule, clock.now(), RUNS)]
    notes = [_of_interval()] if isinstance(schedule, Interval) else list(_of_zone(zone))
    return {"meaning": in_words(schedule), "runs": runs, "notes": notes}


def drawn(found: dict[str, Any], url: str) -> SafeString:
    """The same as HTML; `forms.js` asks `url` for it anew while the schedule is typed."""
    lines = [*found.get("runs", ()), *found.get("notes", ())]
    return format_html(
        '<div class="ojs-said{}" data-ojs-preview="{}"><strong>{}</strong><ul>{}</ul></div>',
        " ojs-said-wrong" if "problem" in found else "",
        url,
        found.get("problem") or found.get("meaning", ""),
        format_html_join("", "<li>{}</li>", ((line,) for line in lines)),
    )


def _run(moment: datetime, zone: ZoneInfo) -> str:
    """A run in the schedule's time zone and, if that is another one, in the reader's."""
    local = moment.astimezone(zone)
    theirs = f"{formats.date_format(local, 'D Y-m-d H:i:s')} {local.tzname()}"
    readers = timezone.localtime(moment)
    if readers.utcoffset() != local.utcoffset():
        theirs = f"{theirs} = {display.absolute(moment)}"
    return f"{theirs} ({display.distance(moment)})"


def _of_interval() -> str:
    return gettext(
        "Counted from the run before, or from the moment it is saved; the time zone does not "
        "matter."
    )


def _of_zone(zone: ZoneInfo) -> Iterator[str]:
    now = clock.now().astimezone(zone)
    about = {"zone": zone.key, "offset": f"UTC{_offset(now)}"}
    yield gettext("The times are those of %(zone)s, at present %(offset)s.") % about
    change = _next_change(now, zone)
    if change is None:
        yield gettext("Its clocks do not change within a year.")
        return
    yield gettext(
        "Its clocks change on %(date)s to %(offset)s. A time that is left out then has no run; one "
        "that comes twice has one run, at its first."
    ) % {"date": f"{change:%Y-%m-%d}", "offset": f"UTC{_offset(change)}"}


def _offset(moment: datetime) -> str:
    text = f"{moment:%z}"
    return f"{text[:3]}:{text[3:5]}"


def _next_change(now: datetime, zone: ZoneInfo) -> datetime | None:
    """The first day, at noon, on which clocks differ from what they are now."""
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0)
    for days in range(YEAR):
        # Arithmetic on the wall clock: the same time of each day.
        day = (noon.replace(tzinfo=None) + timedelta(days=days)).replace(tzinfo=zone)
        if day.utcoffset() != now.utcoffset():
            return day
    return None
