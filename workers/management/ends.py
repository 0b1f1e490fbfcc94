"""Signals that ask a long-running command to end."""

from __future__ import annotations

import signal

HANGUP = getattr(signal, "SIGHUP", None)
"""Sent when a terminal is closed; Windows has none."""


def ends(*, has_reload: bool = False) -> list[signal.Signals]:
    """
    Args:
        has_reload: SIGHUP means something else to this command.
    """
    found = [signal.SIGTERM, signal.SIGINT]
    # `nohup` makes a command ignore it.
    if HANGUP is not None and not has_reload and signal.getsignal(HANGUP) != signal.SIG_IGN:
        found.append(HANGUP)
    return found
