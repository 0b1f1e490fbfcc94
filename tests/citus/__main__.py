"""Cells on Citus: distributed, moved under load, measured, broken (`make citus`).

    make citus ARGS="--source ../citus"

builds Citus from a folder with its source (the tag v12.1.6) against Debian's PostgreSQL, unless it
is installed, and starts a coordinator and two nodes on 127.0.0.1. Nothing is left behind, except
that the extension stays installed.
"""

from __future__ import annotations

import sys

from tests.campaign.guard import guarded

from .options import arguments

if __name__ == "__main__":
    arguments(sys.argv[1:])  # wrong ones are refused here
    sys.exit(guarded("tests.citus.run", sys.argv[1:]))
