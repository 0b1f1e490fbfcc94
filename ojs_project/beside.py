"""Lets other commands find a running quickstart: `manage.py createapikey` in another terminal.

Quickstart generates a secret key, and may take its database from the command line. While it runs,
both are in a file of the data folder that only its user may read, and that it keeps locked. The
lock ends with its process, however that ends; the file is then ignored.
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
"""Variables that quickstart sets."""
DECIDED = ("DJANGO_SECRET_KEY", "DJANGO_SECRET_KEY_FILE", "DJANGO_DEBUG")
"""Variables that say how the settings are read, so that no quickstart need be looked for."""


def be_found(environ: Mapping[str, str]) -> int | None:
    """Publish this quickstart's configuration; return the descriptor that keeps the file locked.

    None if another quickstart already uses the folder: commands then find that one.

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
    """Empty the file and release its lock."""
    if found_by is not None:
        os.ftruncate(found_by, 0)
        os.close(found_by)


def join(environ: MutableMapping[str, str]) -> Path | None:
    """Take over the configuration of a quickstart that runs on this data folder; return its file.

    Nothing is taken over if none runs, or if a secret key or `DJANGO_DEBUG` is set: these already
    decide how the settings are read.
    """
    if any(environ.get(name) for name in DECIDED):
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
