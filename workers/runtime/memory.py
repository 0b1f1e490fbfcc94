"""Measures the memory of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STATM = Path("/proc/self/statm")
MEGABYTE = 1024 * 1024


def resident_megabytes() -> float:
    """Resident memory now; if the system does not report it, the peak."""
    if STATM.exists():
        pages = int(STATM.read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MEGABYTE if sys.platform == "darwin" else peak / 1024
