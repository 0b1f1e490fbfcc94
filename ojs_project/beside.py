"""How other commands find a quickstart that runs: `manage.py createapikey` in another terminal.

Quickstart makes up a secret key, and may take its database from the command line. While it runs,
both stand in a file of the data folder that only its user may read, and that it holds locked. The
lock goes with its process, however that ends; what is left in the file then counts for nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from .environment import data_folder

NAME = "quickstart.json"
SHARED = (
    "DATABASE_URL",
    "DJANGO_ALLOWED_HOSTS",
    "DJANGO_DEBUG",
    "DJANGO_SECRET_KEY",
    "OJS_ALLOW_ANONYMOUS",
    "OJS_FLARE_ENABLED",
)
"""Variables that quickstart completes."""


def be_found(environ: Mapping[str, str]) -> int | None:
    """Say how this quickstart is set up; return what keeps saying it until the process ends.

    None where another quickstart has the folder already: it is the one to be found.

    Raises:
        OSError: the file cannot be written.
    """
    path = data_folder(environ) / NAME
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    shared = {name: environ[name] for name in SHARED if name in environ}
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(shared).encode())
    return descriptor


def be_gone(found_by: int | None) -> None:
    """Leave nothing to be read behind."""
    if found_by is not None:
        os.ftruncate(found_by, 0)
        os.close(found_by)


def join(environ: MutableMapping[str, str]) -> Path | None:
    """Take over how a quickstart that runs on this data folder is set up; return where that stood.

    Nothing is taken over where nothing runs, or where a secret key or `DJANGO_DEBUG` is set: with
    these it is decided how the settings are read.
    """
    if environ.get("DJANGO_SECRET_KEY") or environ.get("DJANGO_DEBUG"):
        return None
    path = data_folder(environ) / NAME
    try:
        with path.open() as file:
            if not _is_held(file.fileno()):
                return None
            shared = json.load(file)
    except (OSError, ValueError):
        return None
    for name in SHARED:
        if name in shared:
            environ.setdefault(name, shared[name])
    return path


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
