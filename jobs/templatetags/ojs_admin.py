"""`{% ojs_notices %}`: warnings at the top of a page. For a site's own index page too."""

from __future__ import annotations

from typing import Any

from django import template

from ..admin.notices import notices

register = template.Library()


@register.inclusion_tag("admin/ojs/notices.html", takes_context=True)
def ojs_notices(context: dict[str, Any]) -> dict[str, Any]:
    return {"notices": list(notices(context["request"]))}
