from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    label = "ojs_jobs"
    verbose_name = _("Open Job Spec: jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, log  # noqa: F401 (it connects itself)
        from .labels import translate_labels

        translate_labels(self)
        checks.watch_tasks()
