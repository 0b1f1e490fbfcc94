"""Ends everything that a program started, a campaign above all, however the program ends.

The guard is a process between the caller and the process that does the work. It adopts every orphan
below it, so that everything can be found as its descendants. It ends when the work ends, or when
the caller is gone, which closes the pipe that it reads.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
SET_CHILD_SUBREAPER = 36
DATABASE = "OJS_TEST_DATABASE"
PATIENCE = 20
"""Seconds that a program may take to end by itself when its caller is gone."""


def guarded(program: str, arguments: list[str]) -> int:
    """Run a module under a guard, with a folder as its first argument; return its exit code."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "tests.campaign.guard", program, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None
    try:
        return guard.wait()
    except KeyboardInterrupt:
        guard.stdin.close()
        return guard.wait()


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _, program, *arguments = sys.argv
    folder = Path(tempfile.mkdtemp(prefix="ojs-guarded-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user
    try:
        work = subprocess.Popen(
            [sys.executable, "-m", program, str(folder), *arguments],
            cwd=ROOT,
            # For shared code of the suite; the database of these settings is not used.
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", DATABASE: "sqlite"},
            stdin=subprocess.DEVNULL,
        )

        def end_with_the_caller() -> None:
            sys.stdin.buffer.read()
            work.terminate()
            try:
                work.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                work.kill()

        threading.Thread(target=end_with_the_caller, daemon=True).start()
        return work.wait()
    finally:
        end_all()
        unmount(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_all() -> None:
    while children := psutil.Process().children(recursive=True):
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(children, timeout=5)
        # Adopted processes must be reaped by us.
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def unmount(folder: Path) -> None:
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return
    for line in mounts.read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", place], check=False)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The thread that reads may still wait for a caller that stays.
    os._exit(code if code >= 0 else 1)
