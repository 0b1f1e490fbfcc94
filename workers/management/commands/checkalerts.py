"""Check all alert rules once and send what is due: for cron, where it also notices that no reaper
runs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from jobs.management import base
from jobs.spec.error_texts import in_one_line
from workers.alerts import delivery, evaluation
from workers.models import Alert


class Command(base.Command):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--fail",
            action="store_true",
            help="exit with 1 if an alert is open (acknowledged or not)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        evaluation.evaluate()
        sent = delivery.deliver_due()
        opened = list(Alert.objects.begun().select_related("rule").order_by("pk"))
        for alert in opened:
            self.stdout.write(in_one_line(f"{alert.rule.name}: {alert.text}"))
        self.stdout.write(f"{len(opened)} alerts are open; {sent} notifications were sent.")
        if opened and options["fail"]:
            raise CommandError("Alerts are open.")
