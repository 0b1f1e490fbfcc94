"""System checks of the stand-alone project: what its environment says that nothing reads."""

from __future__ import annotations

import os
from typing import Any

from django.core import checks

from .environment import misread


@checks.register("ojs")
def check_environment(**kwargs: Any) -> list[checks.CheckMessage]:
    # A typo must be seen, but what others set beside us (Kubernetes does) must stop nothing.
    return [
        checks.Warning(problem, hint=hint, id="ojs_project.W001")
        for problem, hint in misread(os.environ)
    ]
