"""Which trace a job belongs to, by what its client put into `meta` (OJS events §8.2)."""

from __future__ import annotations

import re
from typing import Any

TRACE_ID, TRACEPARENT = "trace_id", "traceparent"
LONGEST = 255
PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""W3C Trace Context §3.2."""


def trace_id_of(trace_id: Any, traceparent: Any) -> str:
    """The trace that two members of `meta` name, the first before the second; empty if neither."""
    if type(trace_id) is str and 0 < len(trace_id) <= LONGEST:
        return trace_id
    found = PARENT.fullmatch(traceparent) if type(traceparent) is str else None
    return found[1] if found else ""
