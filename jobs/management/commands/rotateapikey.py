"""Give an API key a new secret and print it, alone on the last line. It cannot be shown again.

KEY=$(python manage.py rotateapikey billing --overlap 24h)
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from jobs.access.audit import of_shell, record_action
from jobs.http.authentication import SHOWN, NotRotated, StillOverlapping, rotate_key
from jobs.management import base
from jobs.models import ApiKey
from jobs.spec.durations import parse_span
from jobs.spec.timestamps import format_timestamp
from jobs.store.database import atomic

FEWEST = 6
"""Characters that identify a secret."""


class Command(base.Command):
    help = (
        "Give an API key a new secret and print it, alone on the last line. It cannot be shown "
        "again. The previous secret remains valid for a while."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key", help="its name, or the first characters of its secret")
        parser.add_argument(
            "--overlap",
            type=_overlap,
            default="24h",
            help="how long the previous secret remains valid, such as 30m, 24h or 7d; 0 ends it "
            "now (default: %(default)s)",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="immediately end the secret before the previous one, if it is still valid",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        record = _find(options["key"])
        before = record.prefix
        try:
            with atomic():
                secret = rotate_key(
                    record, overlap=options["overlap"], end_earlier=options["force"]
                )
                record.refresh_from_db()
                until = format_timestamp(record.previous_until)  # type: ignore[arg-type]
                record_action(
                    of_shell(),
                    "manage_keys",
                    [record],
                    selection={"rotated": record.name, "earlier_until": until},
                )
                # On stderr, so that a shell can use the output as it is.
                message = f"Made a new secret for the key {record}. The earlier one, {before}…, "
                message += f"works until {until}." if options["overlap"] else "works no more."
                self.stderr.write(message, style_func=str)
                self.hand_over(secret)
        except StillOverlapping as problem:
            raise CommandError(f"{problem} Wait until then, or end it now with --force.") from None
        except NotRotated as problem:
            raise CommandError(str(problem)) from None


def _overlap(text: str) -> timedelta:
    try:
        return timedelta(0) if text == "0" else parse_span(text)
    except ValueError as problem:
        raise ArgumentTypeError(str(problem)) from None


def _find(text: str) -> ApiKey:
    """Return the key that `text` identifies.

    Raises:
        CommandError: it matches no key, or more than one.
    """
    meant = Q(name=text)
    if FEWEST <= len(text) <= SHOWN:
        meant |= Q(prefix__startswith=text)
    found = list(ApiKey.objects.usable().filter(meant).order_by("name", "pk")[:6])
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found[:5])) + (" and more" if len(found) > 5 else "")
        raise CommandError(f"Several keys are meant: {names}. Name one by its first characters.")
    if ApiKey.objects.filter(meant).exists():
        raise CommandError(f"The key {text!r} is revoked or has expired: make a new one.")
    raise CommandError(f"There is no key with the name or the first characters {text!r}.")
