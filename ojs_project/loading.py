"""Imports what requests need before a server takes the first one.

Django imports the URLs, and with them the views and the admin, at the first request. A server whose
files were replaced before that would run two versions at once.
"""

from __future__ import annotations

from django.template import Engine
from django.urls import get_resolver

from jobs.store import readiness
from workers.openapi import document

# Settings name it for the login.
from . import addresses  # noqa: F401


def load() -> None:
    """Takes about a tenth of a second, which the first requests save."""
    get_resolver()._populate()
    # It is made from the endpoints of every binding.
    document.current()
    readiness.migrations()
    # It imports what the settings name.
    Engine.get_default().template_loaders  # noqa: B018
