"""The fleet in the Django admin."""

from . import notices, why  # noqa: F401 (register the pages' warnings and explanations)
from .dashboard import DashboardAdmin
from .operation import FleetOperationAdmin
from .spec import JobSpecAdmin
from .worker import WorkerAdmin

__all__ = ["DashboardAdmin", "FleetOperationAdmin", "JobSpecAdmin", "WorkerAdmin"]
