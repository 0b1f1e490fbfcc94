"""Create an API key and print it, alone on the last line. It cannot be shown again.

KEY=$(python manage.py createapikey --name billing --scopes work)
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.dateparse import parse_date

from jobs.access.audit import of_shell, record_action
from jobs.http.authentication import make_key
from jobs.management import base
from jobs.management.words import Words, words
from jobs.models import ApiKey, Scope
from jobs.spec.durations import parse_span
from jobs.spec.timestamps import format_timestamp, parse_timestamp
from jobs.store.database import atomic

WANTED = (Scope.PRODUCE, Scope.WORK)
"""The scopes that clients need. Those for changing other clients' work must be named explicitly."""


class Command(base.Command):
    help = "Create an API key and print it, alone on the last line. It cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", required=True, help="what it is for, to recognise it by")
        parser.add_argument(
            "--scopes",
            action=Words,
            default=[*WANTED],
            help=f"what it may do, separated by commas, of {', '.join(Scope)} "
            f"(default: {','.join(WANTED)})",
        )
        parser.add_argument("--worker-id", help="the only worker it may act for")
        parser.add_argument("--label", help="a label that workers using it must have")
        parser.add_argument(
            "--project", help="the only project whose jobs it can access (default: all)"
        )

        parser.add_argument(
            "--expires",
            help="when it stops working: after a time such as 90d, or at a date such as "
            "2027-01-01 or 2027-01-01T12:00:00Z (default: never)",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="create it although there is a usable key with the same name",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        scopes = self._scopes(options["scopes"])
        fields = {"name": options["name"].strip()} | _bindings(options)
        if (fields["worker_id"] or fields["label"]) and Scope.WORK not in scopes:
            raise CommandError(
                f"--worker-id and --label bind a key of workers: add the scope {Scope.WORK}."
            )
        try:
            ApiKey(**fields).clean_fields(exclude={"prefix", "digest", "scopes"})
        except ValidationError as problem:
            raise CommandError(_one_line(problem)) from None
        name = fields.pop("name")
        expires_at = None if options["expires"] is None else _expiry(options["expires"])
        with atomic():
            if not options["force"]:
                _refuse_twin(name)
            record, key = make_key(name, scopes=scopes, expires_at=expires_at, **fields)
            record.refresh_from_db()
            # Queried from the database, whose clock decides when it is used.
            if not ApiKey.objects.usable().filter(pk=record.pk).exists():
                raise CommandError(f"--expires {options['expires']} is not in the future.")
            record_action(of_shell(), "manage_keys", [record], selection={"made": name})
            # On stderr, so that a shell can use the output as it is.
            *others, last = scopes
            may = f"{', '.join(others)} and {last}" if others else last
            message = f"Made the key {record}, which may {may}"
            if record.expires_at is not None:
                message += f" until {format_timestamp(record.expires_at)}"
            message += "."
            self.stderr.write(message, style_func=str)
            self.hand_over(key)

    def _scopes(self, given: list[str] | str) -> list[str]:
        """Return the scopes that are given, each once and in the order of their declaration.

        Args:
            given: text if `call_command` was called with it as a keyword argument.
        """
        named = set(words(given) if isinstance(given, str) else given)
        unknown = sorted(named.difference(Scope.values))
        if unknown or not named:
            raise CommandError(
                f"--scopes takes {', '.join(Scope)}, separated by commas"
                + (f", and not {', '.join(unknown)}." if unknown else ".")
            )
        return [str(scope) for scope in Scope if scope in named]


def _refuse_twin(name: str) -> None:
    """Refuse a second usable key with this name.

    Raises:
        CommandError: there is one. A script that runs twice would otherwise leave keys behind that
            no one remembers.
    """
    twin = ApiKey.objects.usable().filter(name=name).order_by("-pk").first()
    if twin is not None:
        raise CommandError(
            f"There is a usable key with this name already: {twin}. Give it a new secret with "
            "`manage.py rotateapikey`, choose another name, or add --force for a second key."
        )


def _expiry(text: str) -> Any:
    """Return the moment that `--expires` gives: a datetime, or an expression for the database.

    Raises:
        CommandError: it is not a moment.
    """
    text = text.strip()
    try:
        if text[-1:].islower():
            span = parse_span(text)
            if span <= timedelta(0):
                raise ValueError(f"{text!r} is no time at all.")
            return Now() + span
        day = parse_date(text)
        if day is not None:
            return timezone.make_aware(datetime.combine(day, time()))
        return parse_timestamp(text)
    except ValueError as problem:
        raise CommandError(
            f"--expires takes a time such as 90d, or a date such as 2027-01-01: {problem}"
        ) from None


def _bindings(options: dict[str, Any]) -> dict[str, str]:
    """Return what the key is bound to; empty without options.

    Raises:
        CommandError: an option is given, but empty. A script whose variable is not set would
            otherwise get an unbound key.
    """
    message = {name: options[name] for name in ("worker_id", "label", "project")}
    for name, value in message.items():
        if value is not None and not value.strip():
            option = name.replace("_", "-")
            raise CommandError(f"--{option} is empty: name one, or leave it out.")
    return {name: (value or "").strip() for name, value in message.items()}


def _one_line(problem: ValidationError) -> str:
    return " ".join(
        f"--{field.replace('_', '-')}: {' '.join(texts)}"
        for field, texts in problem.message_dict.items()
    )
