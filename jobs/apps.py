from __future__ import annotations

import contextlib

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.signals import connection_created
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    label = "ojs_jobs"
    verbose_name = _("Open Job Spec: jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks
        from .conf import ojs_settings
        from .models.labels import translate_labels
        from .record import log
        from .store import keepalive, watchdog

        refuse_stranger()
        connection_created.connect(watchdog.watch_new, dispatch_uid="ojs-watchdog")
        connection_created.connect(keepalive.prefer, dispatch_uid="ojs-keepalive")
        translate_labels(self)
        checks.watch_tasks()
        is_observed = is_logged = False
        # A setting that cannot be read is reported by a system check.
        with contextlib.suppress(ImproperlyConfigured):
            is_observed, is_logged = ojs_settings.OPENTELEMETRY, ojs_settings.LOG_JOBS
        if is_logged:
            log.log_lifecycle()
        if is_observed:
            from .opentelemetry import instrument

            instrument()


def refuse_stranger() -> None:
    """
    Raises:
        ImproperlyConfigured: `workers` is a package of the site's own; without this check,
            `migrate` would silently create no tables for workers.
    """
    for app in apps.get_app_configs():
        if app.name == "workers" and app.label != "ojs_workers":
            raise ImproperlyConfigured(
                "The app 'jobs' is that of Open Job Spec, and needs its app 'workers'; but Python "
                f"finds another package of that name, at {app.path}: move that one into a package "
                "of your own, such as 'mysite.workers', and keep its label (label = 'workers' in "
                "its AppConfig), so that its tables and migrations stay what they are."
            )
