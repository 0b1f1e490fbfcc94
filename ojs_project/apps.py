from django.apps import AppConfig


class OjsProjectConfig(AppConfig):
    """Installed so that its management commands are found; a host site never sees them."""

    name = "ojs_project"
    verbose_name = "Open Job Spec server"

    def ready(self) -> None:
        from . import checks  # noqa: F401  (registers them)
