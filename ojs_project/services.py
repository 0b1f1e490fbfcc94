"""Processes that make up a running job server, as quickstart starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.conf import options_of, protocols
from jobs.protocols import WorkerProtocol

from . import demo_jobs
from .quickstart_environment import Address, Unusable
from .supervisor import Service

ROOT = Path(__file__).resolve().parent.parent

WORKER_GRACE = 3
"""Seconds for running demonstration jobs to finish at the end; slower ones fail as `shutdown`."""
LAST_WORDS = 5
"""Seconds after that for the worker's last reports and its deregistration."""


def services(
    address: Address, logs: Path, *, demo: bool, token: str, environ: Mapping[str, str]
) -> list[Service]:
    """Return the services to run; the server comes first."""
    # The children start in our directory, so that relative paths mean the same to them.
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH", "")]))
    environment = {**environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    manage = [sys.executable, str(ROOT / "manage.py")]
    found = [
        # A request that is still being sent is not waited for until its timeout.
        Service("server", server(address), logs / "server.log", environment, grace=10.0),
        Service("reaper", [*manage, "runreaper"], logs / "reaper.log", environment),
        Service("cluster", [*manage, "qcluster"], logs / "cluster.log", environment),
    ]
    found += [
        Service(
            server_name(protocol),
            [*manage, "runprotocol", protocol.name],
            logs / f"{protocol.name}.log",
            environment,
        )
        for protocol in protocols()
        if protocol.server and protocol.server.is_installed and can_listen(protocol)
    ]
    if demo:
        # Over HTTP, as a worker on another machine would be.
        access = {"OJS_URL": address.url, "OJS_AUTH_TOKEN": token}
        command = [*manage, "runjobworker", "--queues", demo_jobs.QUEUE, "--labels", "demo"]
        command += ["--concurrency", "5", "--grace-period", str(WORKER_GRACE)]
        log = logs / "worker.log"
        # Includes time for its last reports.
        grace = WORKER_GRACE + LAST_WORDS
        worker = Service("demonstration worker", command, log, environment | access, grace=grace)
        found.append(worker)
    return found


def server_name(protocol: WorkerProtocol) -> str:
    """Return the name of the process that serves a worker protocol."""
    return f"{protocol.title} server"


def can_listen(protocol: WorkerProtocol) -> bool:
    """Whether its server is enabled (`OJS_AGQ_PORT=0` disables it) and its port is free."""
    options: Any = options_of(protocol.options or object)
    if not options.PORT:
        return False
    try:
        Address.find(options.HOST, options.PORT).check_free()
    except Unusable:
        return False
    return True


def server(address: Address) -> list[str]:
    """Return the command of the server: one process with an event loop."""
    manage = [sys.executable, str(ROOT / "manage.py")]
    return [*manage, "runhttp", "--host", address.ip, "--port", str(address.port)]
