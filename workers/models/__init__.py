"""What is stored about workers, about what operators asked of them, and about housekeeping."""

from .dashboard import Dashboard
from .fleet_sample import FleetSample
from .housekeeping import Reaper, Sweep
from .worker import Worker, default_heartbeat_timeout

__all__ = [
    "Dashboard",
    "FleetSample",
    "Reaper",
    "Sweep",
    "Worker",
    "default_heartbeat_timeout",
]
