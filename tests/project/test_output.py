"""Commands whose output is a pipe that nobody reads any more, or a full disk."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

import jobs
from jobs.management.base import LEFT
from jobs.models import ApiKey, OperatorAction
from tests import processes
from tests.processes import PATIENCE, ROOT

pytestmark = pytest.mark.django_db

FULL = Path("/dev/full")
on_linux = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
SECRETS = [
    ("createapikey", "--name", "billing"),
    ("createsessionkey", "worker-1"),
]


@pytest.fixture
def manage(transactional_db: None, database_url: str) -> Any:
    """Run a command whose output goes to `out`; return its exit code and what it said."""

    def run(out: Any, *words: str, unbuffered: str = "") -> tuple[int, str]:
        ran = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *words],
            env=processes.environment(database_url) | {"PYTHONUNBUFFERED": unbuffered},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
        return ran.returncode, ran.stderr

    return run


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("verb", ["list", "tail"])
def test_a_reader_that_wants_no_more_ends_the_command_silently(manage, verb, unbuffered):
    jobs.enqueue("email.send")
    read, write = os.pipe()
    os.close(read)
    try:
        code, said = manage(write, "jobs", verb, unbuffered=unbuffered)
    finally:
        os.close(write)

    assert (code, said) == (LEFT, "")


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_an_error_in_one_line(manage, unbuffered):
    with FULL.open("w") as full:
        code, said = manage(full, "jobs", "list", unbuffered=unbuffered)

    assert code == 1
    assert said == "CommandError: The output cannot be written: No space left on device\n"


class Unwritable(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("words", SECRETS, ids=lambda words: words[0])
def test_a_key_that_nobody_can_get_is_not_made(words):
    with pytest.raises(CommandError, match=r"^Nothing was changed"):
        call_command(*words, stdout=Unwritable())

    assert not ApiKey.objects.exists()
    assert not OperatorAction.objects.exists()


def test_a_secret_that_nobody_can_get_does_not_replace_the_one_before():
    call_command("createapikey", "--name", "billing")
    before = ApiKey.objects.get().digest

    with pytest.raises(CommandError, match=r"^Nothing was changed"):
        call_command("rotateapikey", "billing", stdout=Unwritable())

    assert ApiKey.objects.get().digest == before
