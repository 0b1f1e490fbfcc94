"""The OJS worker protocol over HTTP (`seeds/ojs-worker-protocol.md`, OJS HTTP §10)."""

from __future__ import annotations

from jobs.protocols import HTTP, OJS, Reports, WorkerProtocol

PROTOCOL = WorkerProtocol(
    name=OJS,
    title="OJS",
    summary="workers of Open Job Spec",
    hears=frozenset({"quiet", "terminate"}),
    reports=Reports.ALWAYS,
    http=HTTP(
        path="ojs/v1",
        urls="workers.bindings.ojs.urls",
        # It is the manifest's own `base_url`.
        in_manifest=False,
        operations="workers.openapi.operations.workers",
    ),
    commands="workers.bindings.ojs.authorization",
    # Producers and operators use it too.
    binding="OJS HTTP",
)
