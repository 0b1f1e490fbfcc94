"""Schemas of responses, and the index of all schemas by name."""

from __future__ import annotations

from jobs.spec.bulk_requests import BulkFilter
from jobs.spec.cron_requests import ChangeCron, CronRequest
from jobs.spec.lifecycle import State
from jobs.spec.operator_requests import LimitsOverride
from jobs.spec.queue_config import QueueConfig
from jobs.spec.rate_policy import JobLimits, QueueLimits, Rate, Throttle
from jobs.spec.retry import Policy
from jobs.spec.unique_policy import Unique
from jobs.spec.validation import KEPT_AS_SENT, Envelope, NestedOptions
from jobs.spec.workflow_plans import CompensationRequest, StepOptions, StepRequest, WorkflowRequest
from workers.bindings.ojs.requests import Ack, ErrorMembers, Nack

from .schema import (
    COUNT,
    TIME,
    UUID,
    Schema,
    anything,
    array,
    boolean,
    enum,
    free,
    integer,
    nullable,
    number,
    obj,
    ref,
    text,
)

ERROR_ENTRY = obj(
    "attempt type code message occurred_at timestamp",
    attempt=integer(minimum=0),
    type=text(),
    code=text(),
    message=text(),
    occurred_at=TIME,
    timestamp=TIME,
    backtrace=array(text()),
    details=free(),
    retryable=boolean("As the worker reported it."),
    worker_id=text(),
)

JOB = obj(
    "specversion id type queue args meta priority state attempt max_attempts tags"
    " created_at enqueued_at",
    specversion=text(),
    id=UUID,
    type=text(),
    queue=text(),
    args=array(anything()),
    meta=free(),
    priority=integer(),
    state=ref("JobState"),
    attempt=integer(minimum=0),
    max_attempts=integer(minimum=0),
    tags=array(text()),
    created_at=TIME,
    enqueued_at=TIME,
    started_at=TIME,
    completed_at=TIME,
    cancelled_at=TIME,
    discarded_at=TIME,
    scheduled_at=text("As the client wrote it."),
    expires_at=text("As the client wrote it."),
    next_attempt_at=TIME,
    next_retry_at=TIME,
    retry_delay_ms=COUNT,
    timeout_ms=COUNT,
    visibility_timeout_ms=COUNT,
    retry=free("As the client wrote it."),
    **dict.fromkeys(("schema", *KEPT_AS_SENT), anything("As the client wrote it.")),
    result=anything("What the worker sent with its ACK."),
    error=ref("JobError"),
    errors=array(ref("JobError")),
    workflow_id=UUID,
    parent_id=text("The job that enqueued it, a UUID."),
    root_id=text("The first job of the line."),
    parent_results=array(anything()),
    progress={"type": "number", "minimum": 0, "maximum": 1},
    progress_data=free("The last progress its worker reported."),
    progress_message=text(),
    checkpoint=anything("For its worker: the last checkpoint, with `state` and `sequence`."),
    last_checkpoint=anything("For its worker: the state of that checkpoint."),
    result_stored_at=TIME,
    result_expires_at=TIME,
    result_size_bytes=COUNT,
    warnings=array(text("What its schema finds wrong, if its mode is `warn`.")),
) | {
    "description": "The job envelope (OJS JSON format §3). Members that the client sent and this "
    "server does not know are returned unchanged."
}

CHANGED = {"previous_state": ref("JobState"), "activated_at": TIME, "re_enqueued_at": TIME}

ERROR = obj(
    "error",
    error=obj(
        "code message retryable details request_id",
        code=text("What went wrong, for machines."),
        message=text("What went wrong, for people."),
        type=text(),
        retryable=boolean("Whether the same request may succeed later."),
        hint=text("What to do about it."),
        details=free("`field` names the invalid member of the body or query."),
        request_id=text("The request's `X-Request-Id`."),
        docs_url=text(),
        doc_url=text(),
    ),
) | {"description": "A refusal (OJS HTTP §16, errors §3)."}

PAGINATION = obj(
    "total limit offset has_more",
    total=COUNT,
    limit=integer(),
    offset=COUNT,
    has_more=boolean(),
    next_cursor=text(),
)

CHECKPOINT = {"job_id": UUID, "sequence": integer(), "created_at": TIME, "state": anything()}

ACKED = {
    "acknowledged": boolean(),
    "job_id": UUID,
    "id": UUID,
    "state": ref("JobState"),
    "attempt": integer(),
}

NACKED = ACKED | {
    "max_attempts": integer(),
    "next_attempt_at": TIME,
    "next_retry_at": TIME,
    "retry_delay_ms": COUNT,
    "discarded_at": TIME,
    "completed_at": TIME,
}

ONE_OF_MANY = {
    "status": integer("The status that this outcome would have had in a request of its own."),
    "error": ERROR["properties"]["error"],
}

WORKFLOW_NODE = obj(
    type=text(),
    state=text(),
    index=integer(),
    job_id=nullable(UUID),
    workflow_id=UUID,
    job_state=ref("JobState"),
    id=text(),
    name=text("Of a step of a saga."),
    depends_on=array(text()),
    compensation=obj(
        "type state job_id",
        type=text(),
        state=text("`waiting`, `not_fired`, or as that of a step."),
        job_id=nullable(UUID),
        job_state=ref("JobState"),
        progress=nullable(number()),
        started_at=TIME,
        completed_at=TIME,
        result=anything(),
    ),
    progress=nullable(number()),
    started_at=TIME,
    completed_at=TIME,
    result=anything(),
)

WORKFLOW = obj(
    "id type name state created_at metadata",
    id=UUID,
    type=enum("chain", "group", "batch", "dag", "saga"),
    name=text(),
    state=text(),
    created_at=TIME,
    started_at=TIME,
    completed_at=TIME,
    cancelled_at=TIME,
    parent_id=UUID,
    metadata=free(),
    steps=array(ref("WorkflowNode")),
    jobs=array(ref("WorkflowNode")),
    steps_total=COUNT,
    steps_completed=COUNT,
    jobs_total=COUNT,
    jobs_completed=COUNT,
    progress=nullable(number()),
    callbacks=free(),
)

CRON = obj(
    "id name cron expression schedule timezone type args queue options job_template"
    " overlap_policy enabled status run_count created_at",
    id=text(),
    name=text(),
    cron=text(),
    expression=text(),
    schedule=text(),
    timezone=text(),
    type=text(),
    args=array(anything()),
    queue=text(),
    options=free(),
    job_template=free(),
    meta=free(),
    overlap_policy=enum("skip", "allow", "cancel_previous", "enqueue"),
    enabled=boolean(),
    status=enum("active", "paused"),
    description=nullable(text()),
    last_run_at=nullable(TIME),
    next_run_at=nullable(TIME),
    run_count=COUNT,
    created_at=TIME,
)

CRON_RUN = obj(
    "cron_name job_id outcome reason scheduled_at decided_at",
    cron_name=text(),
    job_id=nullable(UUID),
    outcome=text(),
    reason=text(),
    scheduled_at=TIME,
    decided_at=TIME,
)

EVENT = obj(
    "specversion id type source time timestamp subject data",
    specversion=text(),
    id=text("Also the cursor that continues after it."),
    type=text(examples=["job.completed"]),
    source=text(),
    time=TIME,
    timestamp=TIME,
    subject=text(),
    data=free(),
    job_id=text(),
    job_type=text(),
    queue=text(),
    state=text(),
)

SETTLED = obj("id state attempt", id=UUID, state=ref("JobState"), attempt=COUNT) | {
    "description": "The same, where other answers have the job."
}

TWICE = "The members of `job` stand at the top level, too."

COMPONENTS: dict[str, Schema] = {
    "AckReply": obj(
        "acknowledged job_id id state attempt job", **ACKED, completed_at=TIME, job=SETTLED
    ),
    "CheckpointReply": obj(
        "job_id sequence created_at checkpoint", **CHECKPOINT, checkpoint=obj(**CHECKPOINT)
    ),
    "CronJob": CRON,
    "CronRun": CRON_RUN,
    "ErrorReply": ERROR,
    "Event": EVENT,
    "Failed": obj("acknowledged job_id id state attempt max_attempts job", **NACKED, job=SETTLED),
    "Job": JOB,
    "JobError": ERROR_ENTRY,
    "JobReply": obj("job", job=ref("Job"), deduplicated=boolean("It was there before."))
    | {"description": TWICE},
    "ChangedJobReply": obj(
        "job", job={"allOf": [ref("Job"), {"type": "object", "properties": CHANGED}]}
    )
    | {"description": TWICE},
    "JobState": enum(*State.values),
    "Outcome": obj("status acknowledged job_id id", **NACKED, **ONE_OF_MANY)
    | {"description": "The result of one of several outcomes."},
    "Pagination": PAGINATION,
    "Workflow": WORKFLOW,
    "WorkflowNode": WORKFLOW_NODE,
    "WorkflowReply": obj("workflow", workflow=ref("Workflow"))
    | {"description": "The members of `workflow` stand at the top level, too."},
} | {
    form.component: form.json_schema()
    for form in (
        Ack,
        BulkFilter,
        CronRequest,
        ChangeCron,
        Envelope,
        ErrorMembers,
        JobLimits,
        QueueLimits,
        LimitsOverride,
        Nack,
        NestedOptions,
        Policy,
        QueueConfig,
        Rate,
        StepOptions,
        StepRequest,
        CompensationRequest,
        Throttle,
        Unique,
        WorkflowRequest,
    )
}
