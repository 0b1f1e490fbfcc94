"""Stored worker ids, so that each project has ids of its own.

Records, reservations and events identify a worker by one text. That is the worker's id, unless a
worker of another project, or without a project, has a record with this id; then it is the
*qualified* id, `PROJECT@/ID`. No client may use an id that contains `@/`, so a qualified id always
belongs to its project.

`workers.access.names` decides which of the two is stored. A project's key sends and receives the
plain id; keys without a project and the admin use the stored one.
"""

from __future__ import annotations

import re
from hashlib import sha256

from .fields import refuse
from .members import Schema, Text

# Two different characters, so that the separator cannot be found in two places if a project ends,
# or an id begins, with one of them.
SEPARATOR = "@/"
LONGEST = 255
"""Length of a stored id, in characters."""
DIGEST = 32
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class WorkerId(Text):
    """A worker's id as clients send it; `workers.access.admission` refuses reserved ones."""

    def rules(self) -> Schema:
        return super().rules() | {"not": {"pattern": SEPARATOR}}


def check_new(worker_id: str) -> None:
    """Check the id of a worker that has no record yet.

    Raises:
        InvalidRequest: it has control characters. No URL would match it, and it would break lines
            of logs.
    """
    if has_control_characters(worker_id):
        raise refuse(
            "worker_id", "A worker's id must not contain control characters.", validation="pattern"
        )


def has_control_characters(worker_id: str) -> bool:
    return CONTROL_CHARACTERS.search(worker_id) is not None


def is_reserved(worker_id: str) -> bool:
    """Whether clients may not use this id."""
    return SEPARATOR in worker_id


def longest_in(project: str) -> int:
    """The length of the ids that a project may give new workers: the project's name fits as well.

    Otherwise the project would learn from its own worker's cut id that another one has the plain
    one.
    """
    return LONGEST - len(project) - len(SEPARATOR)


def qualified(worker_id: str, project: str) -> str:
    """The stored id of a project's worker if another worker has the plain one.

    An id that would be too long is cut, and ends in a hash of the whole id. Only workers of earlier
    releases have such ids.
    """
    room = longest_in(project)
    if len(worker_id) > room:
        digest = sha256(worker_id.encode()).hexdigest()[:DIGEST]
        worker_id = f"{worker_id[: room - DIGEST - 1]}~{digest}"
    return f"{project}{SEPARATOR}{worker_id}"


def spellings(worker_id: str, project: str) -> tuple[str, ...]:
    """All possible stored ids of the worker that a key of `project` calls `worker_id`.

    A key without a project, the empty text, uses stored ids.
    """
    if not project:
        return (worker_id,)
    if is_reserved(worker_id):
        # Not even its own stored id: it would reveal that another worker has the plain id.
        return (qualified(worker_id, project),)
    return (worker_id, qualified(worker_id, project))


def shown(stored: str, project: str) -> str:
    """The id by which a key of `project` knows the worker that is stored as `stored`."""
    if not project:
        return stored
    worker_id = stored.removeprefix(f"{project}{SEPARATOR}")
    # The name of a project may contain the separator.
    return stored if is_reserved(worker_id) else worker_id
