"""`make campaign`: breaks what can break, and accounts for every job."""

from __future__ import annotations

import sys

from .guard import guarded
from .options import arguments

if __name__ == "__main__":
    arguments(sys.argv[1:])  # wrong ones are refused here
    sys.exit(guarded("tests.campaign.run", sys.argv[1:]))
