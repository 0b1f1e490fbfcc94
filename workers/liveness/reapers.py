"""The reapers that run: each gives a sign of life, and silence is reported by everything else."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max, QuerySet
from django.db.models.functions import Now

from jobs.conf import ojs_settings
from jobs.store import clock

from ..models import Reaper


def own_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def sign_of_life(name: str) -> None:
    """Record that a reaper runs, for the health check and the admin."""
    Reaper.objects.update_or_create(pk=name, defaults={"seen_at": Now()})


def last_seen() -> datetime | None:
    """When any reaper was last seen."""
    seen: Any = Reaper.objects.aggregate(seen=Max("seen_at"))["seen"]
    return seen


def newest() -> QuerySet[Any]:
    """The same as a subquery."""
    return Reaper.objects.order_by("-seen_at").values("seen_at")[:1]


def is_silent(seen: datetime | None, limit: timedelta | None = None) -> bool:
    """Whether a reaper last seen at `seen` has been silent for `limit`, or `REAPER_SILENT`."""
    limit = ojs_settings.REAPER_SILENT if limit is None else limit
    return seen is None or clock.now() - seen > limit
