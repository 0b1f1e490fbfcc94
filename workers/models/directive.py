"""Directives that operators gave to workers, and their outcomes."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..lifecycle import WorkerState


class Answer(models.TextChoices):
    """The outcome of a directive."""

    WAITING = "waiting", _("not yet reported")
    REPORTED = "reported", _("reported")
    """The worker reports the requested state."""
    RELAYED = "relayed", _("relayed; it reports no state")
    """The directive was the reply to its next sign of life; nothing more can be known."""
    ENFORCED = "enforced", _("enforced at fetch; its protocol has no word for it")
    """The worker cannot be notified. Since its next sign of life, fetches have given it jobs, or
    none, as the directive requires."""
    SUPERSEDED = "superseded", _("another order followed")
    GONE = "gone", _("it was gone before it reported")


FOLLOWED = (Answer.REPORTED, Answer.RELAYED, Answer.ENFORCED)
"""The most that can be known of a worker that obeys."""


class Directive(models.Model):
    """A directive to one worker: who gave it, why and when, and its answer (§4.4)."""

    # No foreign keys: a worker's record is deleted after its retention period, and a directive
    # from the reaper may belong to an operator's action of long ago.
    worker_id = models.CharField(max_length=255)
    state = models.CharField(max_length=10, choices=WorkerState)
    """The requested state; `running` withdraws a `quiet`."""
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
