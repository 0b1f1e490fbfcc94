"""MULTI … EXEC: commands that are queued, and then carried out in one go.

The commands of a transaction run one after the other, as if they had been sent at EXEC, and one
reply carries all of their results. A command that fails does not undo earlier ones (neither does
it in Redis), and commands of other connections may run in between. So there is nothing that WATCH
could guarantee.
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
"""Commands that are never queued."""
WAITS = frozenset({"WORKER.VERIFY"})
"""Commands that only make sense if they may wait for a worker."""


@dataclass(slots=True)
class Transaction:
    """Commands since MULTI."""

    limit: int
    """Maximum size of all its commands, in bytes."""
    commands: list[list[bytes]] = field(default_factory=list)
    size: int = 0
    is_broken: bool = False
    """A command was refused when it was queued: EXEC will refuse all of them."""

    def add(self, command: list[bytes]) -> Status:
        """Queue a command.

        Raises:
            Failed: the transaction would be too large.
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
