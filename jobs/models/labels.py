"""What a form or a column calls a field of our models, in the reader's language."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy


def translate_labels(app: AppConfig) -> None:
    """Translate the names that fields have from their attributes: `max_attempts`, "max attempts".

    Here and not in the models, where each would be spelt twice and stand in a migration.
    """
    for model in app.get_models():
        for field in model._meta.local_fields:
            if getattr(field, "_verbose_name", None) is None:
                field.verbose_name = gettext_lazy(str(field.verbose_name))
