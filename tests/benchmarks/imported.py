"""Imports the product once, in the process from which `paths` forks its servers and workers.

The URLs are left to each of them: they hold the views, and so what a fast path consists of.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import django

django.setup()

VIEWS = ("jobs.api", "jobs.api.admin", "workers.api", "workers.bindings.ojs")
for name in (
    *(
        f"{package}.{module.name}"
        for package in VIEWS
        for module in iter_modules(import_module(package).__path__)
        if module.name != "urls"
    ),
    "ojs_project.bypass",
    "tests.benchmarks.fast_paths",
    "tests.benchmarks.in_process",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "workers.bindings.ojs.verbs",
    "workers.management.commands.runhttp",
    "workers.management.commands.runjobworker",
    "workers.management.http_protocol",
):
    import_module(name)
