"""What operators asked of a worker, and what became of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..lifecycle import WorkerState


class Answer(models.TextChoices):
    """What became of a directive."""

    WAITING = "waiting", _("not yet reported")
    REPORTED = "reported", _("reported")
    """The worker says that it is what was asked for."""
    RELAYED = "relayed", _("relayed; it reports no state")
    """The order was the answer to its next sign of life, and more will not be known."""
    ENFORCED = "enforced", _("enforced at fetch; its protocol has no word for it")
    """The worker cannot be asked. Since its next sign of life it has been given jobs, or none, as
    the order says."""
    SUPERSEDED = "superseded", _("another order followed")
    GONE = "gone", _("it was gone before it reported")


FOLLOWED = (Answer.REPORTED, Answer.RELAYED, Answer.ENFORCED)
"""All that can be known of a worker that does as it was asked."""


class Directive(models.Model):
    """One order to one worker: who, why, when asked, when it was answered and how (§4.4)."""

    # No foreign keys: a worker's record goes when its retention has passed, and an order of the
    # reaper's belongs to an operator's action of long ago.
    worker_id = models.CharField(max_length=255)
    state = models.CharField(max_length=10, choices=WorkerState)
    """What was asked for; `running` takes a `quiet` back."""
    action_id = models.BigIntegerField(null=True, blank=True)
    """The operator's action in the audit."""
    asked_by = models.CharField(max_length=255)
    source = models.CharField(max_length=6)
    reason = models.TextField(blank=True, default="")
    asked_at = models.DateTimeField()
    answer = models.CharField(max_length=10, choices=Answer, default=Answer.WAITING)
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("directive")
        verbose_name_plural = _("directives")
        ordering = ("-id",)
        indexes = [
            models.Index("worker_id", "id", name="ojs_directive_worker"),
            models.Index("action_id", name="ojs_directive_action"),
            models.Index(
                "id", name="ojs_directive_waiting", condition=Q(answer=Answer.WAITING.value)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.state} → {self.worker_id}"
