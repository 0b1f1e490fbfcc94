"""A proxy model that gives the dashboard its entry on the admin's index."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from .worker import Worker


class Dashboard(Worker):
    """The fleet and its queues at a glance: a page (`ojs_jobs.view_dashboard`)."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")
