"""Make an API key and print it, alone on the last line: it is shown now and never again.

KEY=$(python manage.py createapikey --name billing --scopes work)
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.api.authentication import make_key
from jobs.audit import of_shell, record_action
from jobs.database import atomic
from jobs.models import ApiKey, Scope

WANTED = (Scope.PRODUCE, Scope.WORK)
"""What clients need. Who may change what other clients do is said expressly."""


class Command(BaseCommand):
    help = "Make an API key and print it, alone on the last line: it is shown now and never again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", required=True, help="what it is for, to recognise it by")
        parser.add_argument(
            "--scopes",
            default=",".join(WANTED),
            help=f"what it may do, separated by commas, of {', '.join(Scope)} "
            "(default: %(default)s)",
        )
        parser.add_argument("--worker-id", help="the only worker it may speak for")
        parser.add_argument("--label", help="a label that workers using it must carry")
        parser.add_argument("--project", help="the only project whose jobs it sees (default: all)")

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
        with atomic():
            record, key = make_key(name, scopes=scopes, **fields)
            record_action(of_shell(), "manage_keys", [record], selection={"made": name})
        # On the other channel, so that a shell can take the output as it is.
        said = f"Made the key {record}, which may {' and '.join(scopes)}."
        self.stderr.write(said, style_func=str)
        self.stdout.write(key)

    def _scopes(self, text: str) -> list[str]:
        """Return the scopes that `text` names, each once and in their own order."""
        named = {word.strip() for word in text.split(",") if word.strip()}
        unknown = sorted(named.difference(Scope.values))
        if unknown or not named:
            raise CommandError(
                f"--scopes takes {', '.join(Scope)}, separated by commas"
                + (f", and not {', '.join(unknown)}." if unknown else ".")
            )
        return [str(scope) for scope in Scope if scope in named]


def _bindings(options: dict[str, Any]) -> dict[str, str]:
    """To whom the key is bound; empty where nothing is said.

    Raises:
        CommandError: something is said, and it is nothing. A script whose variable is not set
            would get a key for all.
    """
    said = {name: options[name] for name in ("worker_id", "label", "project")}
    for name, value in said.items():
        if value is not None and not value.strip():
            option = name.replace("_", "-")
            raise CommandError(f"--{option} is empty: name one, or leave it out.")
    return {name: (value or "").strip() for name, value in said.items()}


def _one_line(problem: ValidationError) -> str:
    return " ".join(
        f"--{field.replace('_', '-')}: {' '.join(texts)}"
        for field, texts in problem.message_dict.items()
    )
