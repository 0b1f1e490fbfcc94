from __future__ import annotations

import contextlib
import os

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class OjsProjectConfig(AppConfig):
    """Installed so that its management commands are found; a host site never sees them."""

    name = "ojs_project"
    verbose_name = "Open Job Spec server"

    def ready(self) -> None:
        from jobs.conf import ojs_settings

        from . import checks, telemetry  # noqa: F401  (registers them)

        # A setting that cannot be read is reported by a system check.
        with contextlib.suppress(ImproperlyConfigured):
            if not ojs_settings.OPENTELEMETRY:
                return
        if telemetry.exports(os.environ, "TRACES"):
            telemetry.start()
