"""Create an AGQ worker's session key and print it. It cannot be shown again (AGQ §7.1).

KEY=$(python manage.py createsessionkey worker-001)
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from django.core.management.base import CommandError

from jobs.access.audit import of_shell, record_action
from jobs.http.authentication import make_key
from jobs.management import base
from jobs.models import Scope
from jobs.store.database import atomic

BYTES = 32
PROJECT_LENGTH = 100


class Command(base.Command):
    help = "Create an AGQ worker's session key and print it. It cannot be shown again."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("worker_id", help="the only worker that the key is for")
        parser.add_argument(
            "--project", default="", help="the only project whose jobs it can access (default: all)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        worker_id = options["worker_id"]
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", worker_id):
            raise CommandError("A worker id has 1 to 64 letters, digits, hyphens, underscores.")
        project = options["project"].strip()
        if len(project) > PROJECT_LENGTH:
            raise CommandError(f"A project has at most {PROJECT_LENGTH} characters.")
        key = secrets.token_hex(BYTES)
        with atomic():
            record, _ = make_key(
                f"AGQ {worker_id}",
                key=key,
                scopes=[str(Scope.WORK)],
                worker_id=worker_id,
                project=project,
            )
            record_action(of_shell(), "manage_keys", [record], selection={"made": record.name})
            self.stderr.write(f"Made a session key for {worker_id}.", style_func=str)
            self.hand_over(key)
