"""Create the tables, the job spec for Rota, and a key; print the key on the last line."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = __doc__ or ""

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        call_command("registerspecs", "campaign.job=v1")
        scopes = "produce,work,operate,observe"
        call_command("createapikey", "--name", "campaign", "--scopes", scopes)
