"""Template tags of our admin pages; `{% ojs_notices %}` is for a site's own pages, too.

Django imports this in every site, `jobs.admin` only if the admin is installed: hence the imports
inside the functions.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import django
from django import template
from django.utils.safestring import SafeString

register = template.Library()


@register.inclusion_tag("admin/ojs/notices.html", takes_context=True)
def ojs_notices(context: dict[str, Any]) -> dict[str, Any]:
    """Warnings at the top of a page: "the reaper has not run for 40 s"."""
    from ..admin.notices import notices

    return {"notices": list(notices(context["request"]))}


@register.simple_tag(takes_context=True)
def ojs_nonce(context: Any, media: Any = None) -> Any:
    """What a site's content security policy may demand of scripts and styles, since Django 6.1.

    Args:
        media: of a form or an admin, to be rendered with it; empty if the page has none.
    """
    if django.VERSION >= (6, 1) and media != "":
        from django.utils import csp

        return csp.nonce_attr(context, media)
    return media or ""


@register.simple_tag
def ojs_narrowed(changes: Any) -> list[tuple[str, str, str]]:
    """The filters that are in use: title, what is chosen, and the query string without it."""
    found = []
    for spec in changes.filter_specs:
        every, *others = spec.choices(changes)
        found += [
            (str(spec.title), str(choice["display"]), every["query_string"])
            for choice in others
            if choice["selected"]
        ]
    return found


@register.simple_tag
def ojs_chip(kind: str, text: str = "") -> SafeString:
    from ..admin.display import chip

    return chip(kind, text)


@register.filter
def ojs_word(state: str) -> str:
    """A state in the reader's language."""
    from ..admin.words import word

    return word(state)


@register.simple_tag
def ojs_json(value: Any) -> str | SafeString:
    from ..admin.display import json_block

    return json_block(value)


@register.simple_tag
def ojs_when(moment: datetime | None) -> str | SafeString:
    from ..admin.display import when

    return when(moment)


@register.simple_tag(takes_context=True)
def ojs_job(context: dict[str, Any], job_id: object) -> str | SafeString:
    from ..admin.display import job_link

    return job_link(context["request"].current_app, job_id)


@register.simple_tag(takes_context=True)
def ojs_worker(context: dict[str, Any], worker_id: str) -> str | SafeString:
    from ..admin.display import worker_link

    return worker_link(context["request"].current_app, worker_id)


@register.simple_tag
def ojs_lines(backtrace: Any) -> SafeString:
    """A backtrace as workers send it: a text, or a list of lines."""
    from ..admin.display import block

    lines = backtrace if isinstance(backtrace, list) else [backtrace]
    return block("\n".join(str(line) for line in lines))
