"""The dashboard's place among the models: an entry on the admin's index."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from .worker import Worker


class Dashboard(Worker):
    """The fleet and its queues at a glance: a page, with a permission of its own."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")
