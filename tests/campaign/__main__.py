"""`make campaign`: break what can break, and account for every job."""

from __future__ import annotations

import sys

from .guard import guarded
from .run import arguments

if __name__ == "__main__":
    arguments()  # wrong ones are refused here
    sys.exit(guarded(sys.argv[1:]))
