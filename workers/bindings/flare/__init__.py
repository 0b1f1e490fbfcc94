"""Zeridion Flare: its Workers API over HTTP (`seeds/zeridion-flare-workers-api.txt`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jobs.conf import duration, option, options_of
from jobs.protocols import HTTP, WorkerProtocol


@dataclass(frozen=True)
class Options:
    """`OJS["FLARE"]`, `OJS_FLARE_<NAME>`."""

    ENABLED: bool = option(False, "Serve the Zeridion Flare protocol under `/flare/v1`.")
    MINIMUM_GRACE: timedelta = duration(
        60,
        "Minimum silence after a job's heartbeat before the job counts as stuck; if longer, two "
        "thirds of the job's `timeout_seconds`.",
    )


PROTOCOL = WorkerProtocol(
    name="flare",
    title="Flare",
    summary="the Zeridion Flare worker protocol",
    options=Options,
    http=HTTP(
        path="flare/v1",
        urls="workers.bindings.flare.urls",
        switch="ENABLED",
        operations="workers.openapi.operations.flare",
    ),
    commands="workers.bindings.flare.authorization",
)


def options() -> Options:
    """The options of this site."""
    return options_of(Options)
