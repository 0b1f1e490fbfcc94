"""How worker ids are stored, so that each project has ids of its own.

Records, reservations and events know a worker by one text. That is the worker's id, unless the
record of another project's worker, or of a worker without a project, has it; then it is the
*qualified* id, `PROJECT@/ID`. No client may use an id with `@/` in it, so that a qualified id is
its project's alone.

Which of the two it is, `workers.access.names` decides. A key of the project sends and reads the id
itself; keys without a project and the admin see what is stored.
"""

from __future__ import annotations

from hashlib import sha256

from .members import Schema, Text

# Two different characters, so that it cannot be read in two places where a project ends, or an id
# begins, with one of them.
SEPARATOR = "@/"
LONGEST = 255
"""Characters of a stored id."""
DIGEST = 32


class WorkerId(Text):
    """A worker's id, as a client says it; `workers.access.admission` refuses those reserved."""

    def rules(self) -> Schema:
        return super().rules() | {"not": {"pattern": SEPARATOR}}


def is_reserved(worker_id: str) -> bool:
    """Whether an id is kept from clients."""
    return SEPARATOR in worker_id


def qualified(worker_id: str, project: str) -> str:
    """The id that is stored for a project's worker where another worker has the plain one.

    An id that would be too long is cut, and ends in a hash of the whole.
    """
    room = LONGEST - len(project) - len(SEPARATOR)
    if len(worker_id) > room:
        digest = sha256(worker_id.encode()).hexdigest()[:DIGEST]
        worker_id = f"{worker_id[: room - DIGEST - 1]}~{digest}"
    return f"{project}{SEPARATOR}{worker_id}"


def spellings(worker_id: str, project: str) -> tuple[str, ...]:
    """All that may be stored for the worker that a key of `project` calls `worker_id`.

    A key without a project, the empty text, names what is stored.
    """
    if not project:
        return (worker_id,)
    if is_reserved(worker_id):
        # Not even its own, as stored: it would learn that another worker has the plain id.
        return (qualified(worker_id, project),)
    return (worker_id, qualified(worker_id, project))


def shown(stored: str, project: str) -> str:
    """What a key of `project` calls the worker that is stored as `stored`."""
    if not project:
        return stored
    worker_id = stored.removeprefix(f"{project}{SEPARATOR}")
    # A project may have the separator in its name.
    return stored if is_reserved(worker_id) else worker_id
