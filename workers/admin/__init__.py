"""The fleet in the Django admin."""

from . import notices  # noqa: F401 (registers what our pages warn of)
from .worker import WorkerAdmin

__all__ = ["WorkerAdmin"]
