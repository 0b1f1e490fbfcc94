"""Static files as a deployment serves them: collected, under their hashed names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import BaseFinder

STORAGE = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"


class Collected(BaseFinder):
    """Finds files only in STATIC_ROOT, and so nothing under its plain name."""

    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        file = Path(settings.STATIC_ROOT) / path
        found = [str(file)] if file.exists() else []
        return found if find_all else next(iter(found), None)

    def list(self, ignore_patterns: Any) -> Any:
        return iter(())
