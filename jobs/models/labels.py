"""Translates the names of our models' fields for forms and columns."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy


def translate_labels(app: AppConfig) -> None:
    """Translate the names that fields derive from their attributes: `max_attempts`, "max attempts".

    Done here rather than in the models, where each name would be spelt twice and be part of a
    migration.
    """
    for model in app.get_models():
        for field in model._meta.local_fields:
            if getattr(field, "_verbose_name", None) is None:
                field.verbose_name = gettext_lazy(str(field.verbose_name))
