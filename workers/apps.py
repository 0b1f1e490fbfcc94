from __future__ import annotations

import contextlib
from typing import Any

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class WorkersConfig(AppConfig):
    name = "workers"
    label = "ojs_workers"
    verbose_name = _("Open Job Spec: workers")
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """
        Raises:
            ImproperlyConfigured: the app it needs is missing; its models would say so in a way
                that names neither of the two.
        """
        if not apps.is_installed("jobs"):
            raise ImproperlyConfigured(
                "The app 'workers' needs the app 'jobs': add it to INSTALLED_APPS."
            )
        super().import_models()

    def ready(self) -> None:
        from jobs.conf import ojs_settings
        from jobs.engine import erasure, history, pool_rules, schemas
        from jobs.models.labels import translate_labels

        from . import code_schedules

        # Importing them connects receivers and declares permissions.
        from .access import table as access  # noqa: F401
        from .alerts import watch
        from .chores import finished_tasks, log, tallies  # noqa: F401
        from .fleet import pools
        from .fleet.declared_versions import declaring
        from .webhooks import delivery as webhooks

        schemas.declared_by[:] = [declaring]
        history.catching_up[:] = [tallies.count]
        erasure.forgetting[:] = [webhooks.forget]
        pool_rules.finding_members[:] = [pools.members]
        translate_labels(self)
        code_schedules.thread.at_first_request()
        watch.thread.at_first_request()
        # A setting that cannot be read is reported by a system check.
        with contextlib.suppress(ImproperlyConfigured):
            if ojs_settings.CONFORMANCE_MODE:
                from . import conformance  # noqa: F401

        if apps.is_installed("django_q"):
            from .chores.housekeeping import install_schedules

            post_migrate.connect(install_schedules, sender=apps.get_app_config("django_q"))
            post_migrate.connect(install_schedules, sender=self)

    def perform(self, document: dict[str, Any], **how: Any) -> Any:
        """Run a job in this thread, for `jobs.testing`, which must not import `workers`."""
        from .runtime.inline import perform

        return perform(document, **how)
