"""System checks of the stand-alone project: environment variables that nothing reads."""

from __future__ import annotations

import logging
import os
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from jobs.checks import check_settings

from .environment import misread

logger = logging.getLogger("ojs_project")


@checks.register("ojs")
def check_environment(**kwargs: Any) -> list[checks.CheckMessage]:
    # A typo must be seen, but variables set by others (such as Kubernetes) must not stop a command.
    return [
        checks.Warning(problem, hint=hint, id="ojs_project.W001")
        for problem, hint in misread(os.environ)
    ]


def hold_to_checks() -> None:
    """Apply to a server the checks that stop every command: WSGI servers run no system checks.

    Raises:
        ImproperlyConfigured: an option is wrong, or dangerous outside DEBUG.
    """
    found = [*check_settings(), *check_environment()]
    wrong = [message.msg for message in found if message.is_serious()]
    if wrong:
        raise ImproperlyConfigured(" ".join(wrong))
    for message in found:
        logger.warning("%s %s", message.msg, message.hint or "")
