"""Workflows and cron jobs."""

from __future__ import annotations

from jobs.errors import (
    Conflict,
    DuplicateJob,
    InvalidRetryPolicyRequest,
    InvalidWorkflow,
    NotFound,
    WorkflowNotFound,
)
from jobs.http.parameters import TENANT
from jobs.spec.cron_requests import ChangeCron, CronRequest
from jobs.spec.workflow_plans import WorkflowRequest

from ..operation import Operation, Reply
from ..refusals import CLOSED, FULL, LARGE_JOB, LARGE_META, MAINTAINED, MISMATCH, Refusals, refuses
from ..schema import COUNT, UUID, array, boolean, number, obj, ref, text
from .jobs import RATE_HEADERS

WORKFLOW = {
    "id": "019539a4-c000-7def-8000-1a2b3c4d5e6f",
    "type": "chain",
    "name": "report",
    "state": "running",
    "created_at": "2026-02-12T10:30:00.000Z",
    "metadata": {"created_at": "2026-02-12T10:30:00.000Z", "job_count": 2},
    "steps": [
        {
            "index": 0,
            "type": "report.extract",
            "state": "active",
            "job_id": "019539a4-c001-7def-8000-1a2b3c4d5e6f",
            "job_state": "active",
        },
        {"index": 1, "type": "report.send", "state": "waiting", "job_id": None},
    ],
    "steps_total": 2,
    "steps_completed": 0,
    "progress": 0.25,
}
NEW_WORKFLOW = {
    "type": "chain",
    "name": "report",
    "options": {"queue": "reports"},
    "steps": [{"type": "report.extract", "args": []}, {"type": "report.send", "args": ["ops"]}],
}
NO_WORKFLOW = refuses(WorkflowNotFound, "There is no such workflow.")
CRON = {
    "id": "weekday-report",
    "name": "weekday-report",
    "cron": "0 9 * * MON-FRI",
    "expression": "0 9 * * MON-FRI",
    "schedule": "0 9 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "type": "report.generate",
    "args": [{"format": "pdf"}],
    "queue": "reports",
    "options": {"queue": "reports"},
    "job_template": {
        "type": "report.generate",
        "args": [{"format": "pdf"}],
        "options": {"queue": "reports"},
    },
    "overlap_policy": "skip",
    "enabled": True,
    "status": "active",
    "description": None,
    "last_run_at": None,
    "next_run_at": "2026-02-13T08:00:00.000Z",
    "run_count": 0,
    "created_at": "2026-02-12T10:30:00.000Z",
}
CRON_REPLY = {
    "allOf": [
        obj(
            "id name expression schedule timezone overlap_policy enabled status run_count cron_job",
            cron_job=ref("CronJob"),
            deleted=boolean(),
        )
    ],
    "description": "The members of `cron_job` are also at the top level; `cron` is the same.",
}
NEW_CRON = {
    "name": "weekday-report",
    "cron": "0 9 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "type": "report.generate",
    "args": [{"format": "pdf"}],
    "options": {"queue": "reports"},
}
RUN = {
    "cron_name": "weekday-report",
    "job_id": "019539a4-d000-7def-8000-1a2b3c4d5e6f",
    "outcome": "enqueued",
    "reason": "",
    "scheduled_at": "2026-02-12T08:00:00.000Z",
    "decided_at": "2026-02-12T08:00:00.310Z",
}
NO_CRON = refuses(NotFound, "There is no cron job of this name.")
REPLIED = CRON | {"cron_job": CRON}


def cron(summary: str, refusals: Refusals = ()) -> Operation:
    return Operation(
        "Cron",
        summary,
        {200: Reply("The cron job.", CRON_REPLY, REPLIED)},
        refusals=NO_CRON + refusals,
    )


OPERATIONS = {
    ("POST", "/ojs/v1/workflows"): Operation(
        "Workflows",
        "Create and start a workflow",
        {
            201: Reply(
                "The workflow with its steps.",
                ref("WorkflowReply"),
                {"workflow": WORKFLOW},
                ("Location", *RATE_HEADERS),
            )
        },
        "Chain, group, batch, saga, or a graph by `depends_on`, nested up to ten levels "
        "(OJS workflows §11.1).",
        body=WorkflowRequest,
        example=NEW_WORKFLOW,
        headers=(TENANT,),
        refusals=refuses(InvalidWorkflow, "The workflow is invalid.")
        + refuses(DuplicateJob, "Its id is taken, or a unique policy refuses a step.")
        + LARGE_META
        + CLOSED
        + FULL
        + MISMATCH
        + MAINTAINED,
    ),
    ("GET", "/ojs/v1/workflows"): Operation(
        "Workflows",
        "List workflows",
        {
            200: Reply(
                "Newest first, without nested workflows.",
                obj(
                    "workflows items pagination total",
                    workflows=array(ref("Workflow")),
                    items=array(ref("Workflow")),
                    pagination=ref("Pagination"),
                    total=COUNT,
                ),
            )
        },
    ),
    ("GET", "/ojs/v1/workflows/{workflow_id}"): Operation(
        "Workflows",
        "Show a workflow with all its steps",
        {200: Reply("It.", ref("WorkflowReply"), {"workflow": WORKFLOW})},
        refusals=NO_WORKFLOW,
    ),
    ("POST", "/ojs/v1/workflows/{workflow_id}/cancel"): Operation(
        "Workflows",
        "Cancel a workflow",
        {200: Reply("The workflow; active jobs may finish.", ref("WorkflowReply"))},
        refusals=NO_WORKFLOW
        + refuses(Conflict, "The workflow has ended already, or undoes its steps."),
    ),
    ("GET", "/ojs/v1/workflows/{workflow_id}/progress"): Operation(
        "Workflows",
        "Read the progress of a workflow",
        {
            200: Reply(
                "The progress of the workflow and of each step.",
                obj(
                    "workflow_id type state progress steps",
                    workflow_id=UUID,
                    type=text(),
                    state=text(),
                    progress=number(minimum=0, maximum=1),
                    steps=array(ref("WorkflowNode")),
                ),
            )
        },
        refusals=NO_WORKFLOW,
    ),
    ("GET", "/ojs/v1/cron"): Operation(
        "Cron",
        "List cron jobs",
        {
            200: Reply(
                "By name; `crons`, `entries` and `items` are the same list.",
                obj(
                    "cron_jobs count pagination",
                    cron_jobs=array(ref("CronJob")),
                    count=COUNT,
                    pagination=ref("Pagination"),
                ),
                {
                    "cron_jobs": [CRON],
                    "count": 1,
                    "pagination": {"total": 1, "limit": 50, "offset": 0, "has_more": False},
                },
            )
        },
    ),
    ("POST", "/ojs/v1/cron"): Operation(
        "Cron",
        "Register a cron job, or update the one with this name",
        {
            201: Reply("The cron job was registered.", CRON_REPLY, REPLIED, ("Location",)),
            200: Reply("The existing cron job was updated.", CRON_REPLY, REPLIED),
        },
        "OJS cron §8.1.",
        body=CronRequest,
        example=NEW_CRON,
        refusals=refuses(InvalidRetryPolicyRequest, "The template's retry policy is invalid.")
        + LARGE_META
        + LARGE_JOB
        + MISMATCH,
    ),
    ("GET", "/ojs/v1/cron/{name}"): cron("Show a cron job"),
    ("DELETE", "/ojs/v1/cron/{name}"): cron(
        "Remove a cron job", refuses(Conflict, "The site's code declares it: disable it instead.")
    ),
    ("PATCH", "/ojs/v1/cron/{name}"): Operation(
        "Cron",
        "Enable, disable or change a cron job",
        {200: Reply("The cron job.", CRON_REPLY, REPLIED)},
        "What is left out stays. A change of anything but `enabled` takes a cron job over that the "
        "site's code declares.",
        body=ChangeCron,
        example={"enabled": False},
        refusals=NO_CRON
        + refuses(InvalidRetryPolicyRequest, "The template's retry policy is invalid.")
        + LARGE_META
        + LARGE_JOB
        + MISMATCH,
    ),
    ("POST", "/ojs/v1/cron/{name}/pause"): cron("Disable a cron job"),
    ("POST", "/ojs/v1/cron/{name}/resume"): cron("Enable a cron job"),
    ("POST", "/ojs/v1/cron/{name}/trigger"): Operation(
        "Cron",
        "Run a cron job once, now",
        {
            201: Reply("A job was enqueued.", ref("CronRun"), RUN),
            200: Reply(
                "No job was enqueued, for the reason in `outcome` and `reason`.",
                ref("CronRun"),
                RUN | {"job_id": None, "outcome": "skipped", "reason": "overlap"},
            ),
        },
        refusals=NO_CRON,
    ),
    ("GET", "/ojs/v1/cron/{name}/history"): Operation(
        "Cron",
        "List the past occurrences of a cron job",
        {
            200: Reply(
                "Newest first.",
                obj(
                    "name runs executions",
                    name=text(),
                    runs=array(ref("CronRun")),
                    executions=array(ref("CronRun")),
                ),
                {"name": "weekday-report", "runs": [RUN], "executions": [RUN]},
            )
        },
        refusals=NO_CRON,
    ),
}
ALIASES = {
    ("GET", "/ojs/v1/crons"): ("GET", "/ojs/v1/cron"),
    **{
        (method, "/ojs/v1/crons/{name}"): (method, "/ojs/v1/cron/{name}")
        for method in ("GET", "DELETE", "PATCH")
    },
    ("DELETE", "/ojs/v1/workflows/{workflow_id}"): (
        "POST",
        "/ojs/v1/workflows/{workflow_id}/cancel",
    ),
}
