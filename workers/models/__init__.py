"""What is stored about workers, about what operators asked of them, and about housekeeping."""

from .housekeeping import Reaper, Sweep
from .worker import Worker, default_heartbeat_timeout

__all__ = ["Reaper", "Sweep", "Worker", "default_heartbeat_timeout"]
