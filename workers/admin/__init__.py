"""The fleet in the Django admin."""

from . import notices  # noqa: F401 (registers what our pages warn of)
from .operation import FleetOperationAdmin
from .worker import WorkerAdmin

__all__ = ["FleetOperationAdmin", "WorkerAdmin"]
