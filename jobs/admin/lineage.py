"""Lineage of a job on its page: what enqueued it, and what it enqueued."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..engine import children_of
from ..models import Job
from ..spec.identifiers import parse_uuid
from ..spec.lineage import PARENT, ROOT
from . import display

SHOWN = 20
"""Children that the page names."""


def lineage(job: Any, site_name: str) -> list[tuple[str, SafeString]]:
    """Return a label and links for each part that the job's lineage has; empty for most."""
    attributes = job.attributes or {}
    parent, root = attributes.get(PARENT), attributes.get(ROOT)
    children = list(children_of([str(job.pk)]).values_list("pk", "type", "state")[: SHOWN + 1])
    above = [key for key in dict.fromkeys((parent, root)) if key and parse_uuid(key)]
    found = Job.objects.filter(pk__in=above).values_list("pk", "type", "state")
    known = {str(pk): (kind, state) for pk, kind, state in found}
    rows = []
    if parent:
        rows.append((_("Enqueued by"), _link(site_name, parent, known)))
    if root and root != parent:
        rows.append((_("First of the line"), _link(site_name, root, known)))
    if children:
        below = {str(pk): (kind, state) for pk, kind, state in children[:SHOWN]}
        links = format_html_join(
            "", "<div>{}</div>", ((_link(site_name, key, below),) for key in below)
        )
        if len(children) > SHOWN:
            links = format_html("{}<div>{}</div>", links, _("and more"))
        rows.append((_("It enqueued"), links))
    return rows


def _link(site_name: str, key: str, known: dict[str, tuple[str, str]]) -> SafeString:
    if key not in known:
        return format_html("{} {}", display.ident(key), display.chip("cancelled", _("deleted")))
    kind, state = known[key]
    link = display.job_link(site_name, key)
    return format_html("{} {} {}", link, kind, display.chip(state))
