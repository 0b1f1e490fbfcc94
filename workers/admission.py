"""Which workers a caller may speak for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jobs.errors import PermissionDenied

from .models import Worker


def admit(worker_ids: Collection[str], caller: Any, *, said: Collection[str] | None = None) -> None:
    """Hold a key made for workers of one label, or of one project, to them.

    Args:
        said: the labels of a worker that arrives; those of one we know count more.

    Raises:
        PermissionDenied: one of them does not carry the label, or is live and another project's.
    """
    if caller.project:
        others = Worker.objects.live().filter(pk__in=worker_ids).exclude(project=caller.project)
        taken = others.values_list("pk", flat=True).first()
        if taken is not None:
            raise PermissionDenied(f"Worker '{taken}' is not of this project.", worker_id=taken)
    if caller.label:
        known = dict(Worker.objects.filter(pk__in=worker_ids).values_list("pk", "labels"))
        for worker_id in worker_ids:
            check_label(known.get(worker_id, said) or (), caller)


def check_label(labels: Collection[str], caller: Any) -> None:
    """
    Raises:
        PermissionDenied: the key is for workers with a label that is not among `labels`.
    """
    if caller.label and caller.label not in labels:
        raise PermissionDenied(
            f"This API key is for workers labelled '{caller.label}' only.", labels=list(labels)
        )
