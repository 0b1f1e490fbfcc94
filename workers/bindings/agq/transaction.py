"""MULTI … EXEC: commands that are put off, and then carried out in one go.

What a transaction is here: its commands run one after the other, as if they had been sent then, and
one answer carries all of theirs. A command that fails does not undo those before it (nor does it in
Redis), and commands of other connections may come between. So there is nothing that WATCH could
promise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .resp import Failed, Status, size_of

QUEUED = Status("QUEUED")
MOST_COMMANDS = 10_000
ABORTED = "EXECABORT Transaction discarded because of previous errors."
NO_WATCH = (
    "ERR WATCH is not supported: nothing here is guarded against changes; JOB.UPDATE is refused by "
    "itself when the job has changed hands"
)
AT_ONCE = frozenset({"MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "QUIT", "RESET"})
"""What is never put off."""
WAITS = frozenset({"WORKER.VERIFY"})
"""What only makes sense where it may wait for a worker."""


@dataclass(slots=True)
class Transaction:
    """What was said since MULTI."""

    limit: int
    """Most bytes of all its commands."""
    commands: list[list[bytes]] = field(default_factory=list)
    size: int = 0
    is_broken: bool = False
    """A command was refused when it came: EXEC will refuse them all."""

    def add(self, command: list[bytes]) -> Status:
        """Put a command off.

        Raises:
            Failed: it is too much.
        """
        if self.is_broken:
            return QUEUED
        self.size += size_of(command)
        if len(self.commands) >= MOST_COMMANDS or self.size > self.limit:
            self.give_up()
            raise Failed(
                f"ERR transaction too large: {MOST_COMMANDS} commands and {self.limit} bytes at "
                "most; send them in several, or without MULTI"
            )
        self.commands.append(command)
        return QUEUED

    def give_up(self) -> None:
        self.is_broken = True
        self.commands.clear()
        self.size = 0
