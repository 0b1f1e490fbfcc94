"""Base class of all commands."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import Error

from jobs.spec.error_texts import in_lines
from jobs.store.trouble import described

LEFT = 128 + signal.Signals.SIGPIPE
"""The exit code of programs whose reader, such as `head`, wants no more."""


class Output(OutputWrapper):
    """Prints control characters as escapes: what a client or a worker wrote must not command a
    terminal. Remembers that it could not be written."""

    has_failed = False

    def write(self, msg: str = "", style_func: Any = None, ending: str | None = None) -> Any:
        with self._watched():
            return super().write(in_lines(msg), style_func, ending)

    def overwrite(self, text: str, before: int = 0) -> None:
        """Write in place of an unfinished line of so many characters; nothing: remove it."""
        line = f"\r{in_lines(text):<{before}}"
        with self._watched():
            super().write(line if text else f"{line}\r", str, "")

    def flush(self) -> None:
        with self._watched():
            super().flush()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.has_failed = True
            raise


class Command(BaseCommand):
    """A command that says in one line that its database failed, or that its output cannot be
    written; `--traceback` shows the rest."""

    def __init__(self, stdout: Any = None, stderr: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(stdout, stderr, *args, **kwargs)
        self.stdout = Output(stdout or sys.stdout)
        style = self.stderr.style_func
        self.stderr = Output(stderr or sys.stderr)
        self.stderr.style_func = style

    def execute(self, *args: Any, **options: Any) -> str | None:
        for name in ("stdout", "stderr"):
            if (stream := options.pop(name, None)) is not None:
                setattr(self, name, Output(stream))
        try:
            output = super().execute(*args, **options)
            self.stdout.flush()
            return output
        except Error as problem:
            raise CommandError(described(problem)) from problem
        except OSError as problem:
            if not getattr(self.stdout, "has_failed", False):
                raise
            _discard_output()
            if isinstance(problem, BrokenPipeError):
                sys.exit(LEFT)
            raise CommandError(f"The output cannot be written: {problem.strerror}") from problem

    def hand_over(self, secret: str) -> None:
        """Write a secret that is shown only once.

        Call it in the transaction that makes the secret: if the output cannot be written, the
        transaction is rolled back.
        """
        try:
            self.stdout.write(secret)
            self.stdout.flush()
        except OSError as problem:
            _discard_output()
            raise CommandError(
                f"Nothing was changed: the output cannot be written: {problem.strerror}"
            ) from problem


def _discard_output() -> None:
    """Python would try to write the rest when it exits, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
