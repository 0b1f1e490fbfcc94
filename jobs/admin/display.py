"""Formats values for our admin pages. Everything is escaped; colours are in `ojs/admin.css`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from django.apps import apps
from django.contrib.admin.utils import quote
from django.urls import NoReverseMatch, reverse
from django.utils import formats, timezone
from django.utils.encoding import escape_uri_path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext

from ..record.wording import distance, span
from ..spec.durations import parse_duration
from ..spec.identifiers import parse_uuid
from .words import word

NOTHING = "–"


def length(value: timedelta | None) -> str:
    """A duration, exact enough to compare it with what was configured."""
    if value is None:
        return NOTHING
    return (
        span(value)
        if value >= timedelta(seconds=10)
        else decimal(value.total_seconds(), "g") + " s"
    )


def decimal(value: float, form: str) -> str:
    """A number in a `format()` such as `.3g`, with the decimal mark of the reader's language."""
    return format(value, form).replace(".", str(formats.get_format("DECIMAL_SEPARATOR")))


def lasted(value: timedelta) -> str:
    """How long something took, to three digits: `12 ms`, `4.2 s`, `2 h 5 min`."""
    seconds = max(0.0, value.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return span(value) if seconds >= 10 else f"{decimal(seconds, '.1f')} s"


def absolute(moment: datetime) -> str:
    local = timezone.localtime(moment)
    return f"{formats.date_format(local, 'Y-m-d H:i:s')} {local.tzname()}"


def exactly(moment: datetime) -> str:
    """For a tooltip: in the reader's time zone and, if different, in UTC."""
    local, utc = absolute(moment), f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return local if local == utc else f"{local} = {utc}"


def when(moment: datetime | None) -> str | SafeString:
    """For lists: the distance, with the moment itself as a tooltip."""
    if moment is None:
        return NOTHING
    return format_html(
        '<time datetime="{}" title="{}" class="ojs-nowrap">{}</time>',
        moment.isoformat(),
        exactly(moment),
        distance(moment),
    )


def moment(value: datetime | None) -> str | SafeString:
    """For pages: the moment itself and its distance."""
    if value is None:
        return NOTHING
    shown, hover = absolute(value), exactly(value)
    return format_html(
        '<time datetime="{}"{}>{}</time> <span class="ojs-quiet">({})</span>',
        value.isoformat(),
        "" if shown == hover else format_html(' title="{}"', hover),
        shown,
        distance(value),
    )


def limits(policy: Mapping[str, Any]) -> list[str]:
    """The limits of a policy (OJS rate limiting §3), each in words."""
    found = []
    if (most := policy.get("concurrency")) is not None:
        found.append(gettext("%(most)d at once") % {"most": most})
    for kind in ("rate", "throttle"):
        if pace := policy.get(kind):
            about = {"most": pace["limit"], "period": length(parse_duration(pace["period"]))}
            found.append(gettext("%(most)d in %(period)s") % about)
    return found


def chip(kind: str, text: str = "") -> SafeString:
    """A state or condition as a coloured word; the meaning does not depend on the colour."""
    return format_html('<span class="ojs-chip ojs-chip-{}">{}</span>', kind, text or word(kind))


def chips(texts: Iterable[str]) -> str | SafeString:
    """Labels, queues, tags."""
    return (
        format_html_join(" ", '<span class="ojs-chip">{}</span>', ((text,) for text in texts))
        or NOTHING
    )


def progress(reported: Any) -> str | SafeString:
    """A job's progress: a bar, the number, and its worker's message."""
    if reported.updated_at is None:
        return NOTHING
    bar: str | SafeString = ""
    if reported.value is not None:
        bar = format_html(
            '<progress max="1" value="{}"></progress> {} ', reported.value, f"{reported.value:.0%}"
        )
    text = reported.message or (json.dumps(reported.data) if reported.data else "")
    return format_html("{}{} {}", bar, Truncator(text).chars(500), moment(reported.updated_at))


def code(text: str, most: int = 80) -> SafeString:
    short = Truncator(text).chars(most)
    return format_html('<code class="ojs-code" title="{}">{}</code>', short, short)


def json_block(value: Any) -> str | SafeString:
    """Indented JSON."""
    if value is None:
        return NOTHING
    return block(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def block(text: str) -> SafeString:
    """Text as it is, which scrolls if it is wide: by keyboard as well."""
    return format_html('<pre class="ojs-json" tabindex="0">{}</pre>', text)


_reader: ContextVar[tuple[Any, Any] | None] = ContextVar("ojs_reader", default=None)


@contextmanager
def read_by(site: Any, request: Any) -> Iterator[None]:
    """Within the block, `admin_url()` gives this user only the pages that they may open."""
    token = _reader.set((site, request))
    try:
        yield
    finally:
        _reader.reset(token)


def _may_open(site: Any, request: Any, model: Any, page: str) -> bool:
    pages = site._registry.get(model)
    if pages is None:
        return False
    if page == "add":
        return bool(pages.has_add_permission(request))
    return bool(pages.has_view_or_change_permission(request))


def admin_url(site_name: str, model: str, page: str, *keys: object) -> str:
    """Return the URL of an admin page.

    Keys are quoted: a worker id may contain `_` and `/`.

    Returns:
        An empty text if the model is not registered, or the reader of the page that is being made
        may not open it.
    """
    reader = _reader.get()
    if reader is not None:
        app, _underscore, name = model.rpartition("_")
        if not _may_open(*reader, apps.get_model(app, name), page):
            return ""
    return _address(site_name, model, page, *keys)


def _address(site_name: str, model: str, page: str, *keys: object) -> str:
    try:
        return reverse(
            f"admin:{model}_{page}",
            args=[quote(key) for key in keys],  # type: ignore[arg-type]
            current_app=site_name,
        )
    except NoReverseMatch:
        return ""


KEY = "ojs-key"


def admin_urls(site_name: str, model: str, page: str) -> Callable[[object], str]:
    """Return `admin_url()` for thousands of keys, one at a time: its pattern is looked up once."""
    before, mark, after = admin_url(site_name, model, page, KEY).rpartition(KEY)

    def url(key: object) -> str:
        return before + escape_uri_path(quote(key)) + after  # type: ignore[arg-type]

    return url if mark else lambda key: ""


def page_url(site: Any, request: Any, model: Any, page: str, *keys: object) -> str:
    """`admin_url()` for a reader who is known, where no page is being made."""
    if not _may_open(site, request, model, page):
        return ""
    return _address(site.name, f"{model._meta.app_label}_{model._meta.model_name}", page, *keys)


def link(url: str, text: str) -> str | SafeString:
    return format_html('<a href="{}">{}</a>', url, text) if url else text


SHORT = 20
"""Longest id that is shown whole."""


def short(text: str) -> str:
    """An id that fits a column. The end of a UUID is what distinguishes it from its neighbours."""
    if len(text) <= SHORT:
        return text
    return f"…{text[-12:]}" if parse_uuid(text) else f"{text[:9]}…{text[-9:]}"


def ident(text: str, url: str = "") -> SafeString:
    """A short id with the whole on hover; `admin.js` puts a button beside it that copies it."""
    return format_html(
        '<span class="ojs-id" title="{}" data-ojs-copy="{}">{}</span>',
        text,
        text,
        link(url, short(text)),
    )


def worker_link(site_name: str, worker_id: str) -> str | SafeString:
    """A worker's id, linked to its page if the app that runs jobs has one in this admin."""
    if not worker_id:
        return NOTHING
    return ident(worker_id, admin_url(site_name, "ojs_workers_worker", "change", worker_id))


def job_link(site_name: str, job_id: object, text: str = "") -> str | SafeString:
    url = admin_url(site_name, "ojs_jobs_job", "change", job_id)
    return link(url, text) if text else ident(str(job_id), url)
