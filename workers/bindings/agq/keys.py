"""What AGQ keeps under keys, answered from our tables (AGQ §2.3, §3.4, §4.3, §9.2)."""

from __future__ import annotations

from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from jobs import clock
from jobs.api.base import dumps
from jobs.identifiers import parse_uuid
from workers import directory

from .resp import Members
from .session import WORKER_ID

STATS_TTL = timedelta(seconds=120)
NO_KEY, NO_EXPIRY = -2, -1
"""What TTL says of a key that is not there, and of one that stays."""
PARTS = ("alive", "metadata", "stats")
LONGEST_PATTERN = 255


def _worker_part(worker_id: str, part: str, project: str) -> tuple[str, int] | None:
    """The value and the seconds it has left."""
    if not WORKER_ID.fullmatch(worker_id) or part not in PARTS:
        return None
    worker = directory.find(worker_id, project)
    if worker is None or (part != "alive" and worker.protocol != "agq"):
        return None
    if part == "metadata":
        # Until it unregisters; a dead worker's stays, for whoever wants to know (§5.3).
        gone = worker.left_at is not None or worker.details is None
        return None if gone else (dumps(worker.details).decode(), NO_EXPIRY)
    if part == "alive":
        if not directory.is_active(worker):
            return None
        left = _left(worker.last_heartbeat_at, worker.heartbeat_timeout)
        return (str(int(worker.last_heartbeat_at.timestamp())), left) if left > 0 else None
    if worker.left_at or worker.stats is None or worker.stats_at is None:
        return None
    left = _left(worker.stats_at, STATS_TTL)
    return (dumps(worker.stats).decode(), left) if left > 0 else None


def _left(since: Any, length: timedelta) -> int:
    """Whole seconds, begun ones counted: nothing that still lives has 0 left."""
    return -((clock.now() - since - length) // timedelta(seconds=1))


def _claim(text: str, project: str) -> tuple[str, int] | None:
    job_id = parse_uuid(text)
    job = directory.job(job_id, project) if job_id else None
    if job is None or not job.reserved_by or job.reserved_until is None:
        return None
    return job.reserved_by, max(0, _left(job.reserved_until, timedelta(0)))


def _look(key: str, project: str) -> tuple[str, int] | None:
    space, _, rest = key.partition(":")
    name, _, part = rest.rpartition(":")
    if space == "worker":
        return _worker_part(name, part, project)
    return _claim(name, project) if space == "job" and part == "worker" else None


def get(key: str, project: str = "") -> str | None:
    found = _look(key, project)
    return found and found[0]


def ttl(key: str, project: str = "") -> int:
    found = _look(key, project)
    if found is not None:
        return found[1]
    return NO_EXPIRY if members(key, project) else NO_KEY


def members(key: str, project: str = "") -> Members:
    """SMEMBERS capability:<tool>:workers: the active workers that have it."""
    if not (key.startswith("capability:") and key.endswith(":workers")):
        return Members()
    tool = key.removeprefix("capability:").removesuffix(":workers")
    return Members(directory.active(tool, project)) if tool else Members()


def matching(pattern: str, project: str = "") -> list[str]:
    """KEYS: what a pattern finds, among the keys that there are."""
    if len(pattern) > LONGEST_PATTERN or pattern.count("*") > 4:
        return []
    found: list[str] = []
    space = pattern.partition(":")[0]
    part = pattern.rpartition(":")[2]
    if space in ("worker", "*", "worker*"):
        if part in ("alive", "*"):
            found += [f"worker:{name}:alive" for name in directory.active(project=project)]
        if part in ("metadata", "stats", "*"):
            known = directory.registered("agq", project)
            parts = [name for name in ("metadata", "stats") if part in (name, "*")]
            keys = [f"worker:{worker}:{name}" for worker in known for name in parts]
            found += [key for key in keys[:1000] if _look(key, project)]
    if space in ("capability", "*"):
        found += [f"capability:{word}:workers" for word in directory.capabilities(project)]
    return [key for key in found if fnmatchcase(key, pattern)]
