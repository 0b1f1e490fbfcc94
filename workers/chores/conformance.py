"""What a case of the conformance suite may leave behind about workers, taken away with the rest."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from django.dispatch import receiver

from jobs.signals import conformance_reset

from ..models import Directive, FleetOperation, FleetSample, OperationStep, Worker

LEFT_BY_CASES: tuple[type[Model], ...] = (
    Directive,
    OperationStep,
    FleetOperation,
    FleetSample,
    Worker,
)


@receiver(conformance_reset, dispatch_uid="ojs_conformance_reset")
def reset(**kwargs: Any) -> None:
    for model in LEFT_BY_CASES:
        model._default_manager.all().delete()
