"""The forms of what is sent and answered, by name."""

from __future__ import annotations

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

MOST = 2**53 - 1
CENTURY = 36_500 * 86_400
STATE = (
    "scheduled",
    "available",
    "pending",
    "active",
    "completed",
    "retryable",
    "cancelled",
    "discarded",
)

TYPE = text(
    "Dotted words: `email.send`.",
    pattern=r"^[a-zA-Z][a-zA-Z0-9_-]*(\.[a-zA-Z][a-zA-Z0-9_-]*)*$",
    maxLength=255,
)
QUEUE = text(pattern=r"^[a-z0-9][a-z0-9.-]*$", maxLength=128, default="default")
WHEN = text(
    "An RFC 3339 timestamp with a time zone, or `+PT5S`: counted from now.",
    examples=["2026-12-24T18:00:00Z", "+PT5S"],
)
MILLISECONDS = integer(minimum=0, maximum=CENTURY * 1000)
SECONDS: Schema = {
    "description": "Whole seconds, or an ISO 8601 duration such as `PT5M`.",
    "oneOf": [integer(minimum=0, maximum=CENTURY), text(examples=["PT5M"])],
}
WORKER_ID = text("Who sends this.", maxLength=255)
ATTEMPT = integer(
    "Fences against an older attempt of the same worker.", minimum=1, maximum=2**31 - 1
)

RETRY = obj(
    max_attempts=integer("All executions, the first included.", minimum=0, maximum=10_000),
    initial_interval=text("ISO 8601.", examples=["PT1S"]),
    backoff_coefficient=number(minimum=1, maximum=1_000_000),
    max_interval=text("ISO 8601.", examples=["PT5M"]),
    jitter=boolean(),
    strategy=enum("none", "constant", "linear", "exponential", "polynomial"),
    non_retryable_errors=array(text(maxLength=255)),
    on_exhaustion=enum("discard", "dead_letter"),
) | {"description": "OJS retry §2. Every member may be left out."}

UNIQUE = obj(
    keys=array(enum("type", "queue", "args", "meta"), minItems=1),
    args_keys=array(text(minLength=1)),
    meta_keys=array(text(minLength=1)),
    period=text("ISO 8601; how long a job counts as a duplicate.", examples=["PT1H"]),
    states=array(enum(*STATE), minItems=1),
    on_conflict=enum("reject", "replace", "replace_except_schedule", "ignore"),
) | {"additionalProperties": False, "description": "OJS unique jobs §2."}

OPTIONS = {
    "queue": QUEUE,
    "priority": integer(minimum=-100, maximum=100, default=0),
    "timeout_ms": MILLISECONDS | {"description": "Longest execution; 0: no limit of its own."},
    "timeout": SECONDS,
    "visibility_timeout_ms": integer(minimum=1, maximum=CENTURY * 1000),
    "delay_until": WHEN,
    "scheduled_at": WHEN,
    "expires_at": WHEN,
    "retry": RETRY,
    "max_attempts": integer(minimum=0, maximum=10_000),
    "unique": UNIQUE,
    "tags": array(text(maxLength=255)),
    "pending": boolean("Wait for `…/activate`."),
    "result_ttl": integer("Seconds to keep the result; -1: for ever.", minimum=-1, maximum=CENTURY),
    "metadata": free("Merged into `meta`."),
}

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
    retryable=boolean("What the worker said of it."),
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
    unique=free("As the client wrote it."),
    result=anything("What the worker sent with its ACK."),
    error=ref("JobError"),
    errors=array(ref("JobError")),
    workflow_id=UUID,
    parent_results=array(anything()),
) | {
    "description": "The job envelope (OJS JSON format §3). Members that the client sent and this "
    "server does not know are returned as they came."
}

CHANGED = {"previous_state": ref("JobState"), "activated_at": TIME, "re_enqueued_at": TIME}

NEW_JOB = obj(
    "type args",
    specversion=text("`1.0`", enum=["1.0", "1.0.0"]),
    id=text("A UUIDv7; left out, the server makes one.", format="uuid"),
    type=TYPE,
    args=array(anything()),
    meta=free("The client's own; `meta.capabilities` names what a worker must be able to do."),
    schema=text(maxLength=2048),
    options=obj(**OPTIONS),
) | {
    "description": "An enqueue request (OJS HTTP §9.1). The members of `options` may stand beside "
    "it, too. Unknown members are kept and returned."
}

ERROR = obj(
    "error",
    error=obj(
        "code message retryable details request_id",
        code=text("What went wrong, for machines."),
        message=text("What went wrong, for people."),
        type=text(),
        retryable=boolean("Whether the same request may succeed later."),
        hint=text("What to do about it."),
        details=free("`field` names the member of the body or query that is at fault."),
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
    "status": integer("What this outcome would have been answered with alone."),
    "error": ERROR["properties"]["error"],
}

JOB_ID = text("A job's id.", format="uuid")
ACK = {"job_id": JOB_ID, "worker_id": WORKER_ID, "attempt": ATTEMPT, "result": anything()}
FAILURE: Schema = {
    "description": "What went wrong: an object, or a text.",
    "oneOf": [
        obj(
            type=text(maxLength=255),
            code=text(maxLength=255),
            message=text(),
            retryable=boolean("`false` ends the job whatever its policy says."),
            details=free(),
            backtrace=array(text()),
        )
        | {"anyOf": [{"required": ["type"]}, {"required": ["code"]}, {"required": ["message"]}]},
        text(),
    ],
}
NACK = {
    "job_id": JOB_ID,
    "worker_id": WORKER_ID,
    "attempt": ATTEMPT,
    "error": FAILURE,
    "requeue": boolean("Give it back unfinished; `error` may be left out then."),
    "retry_in": SECONDS,
}

WORKFLOW_NODE = obj(
    type=text(),
    state=text(),
    index=integer(),
    job_id=nullable(UUID),
    workflow_id=UUID,
    job_state=ref("JobState"),
    id=text(),
    depends_on=array(text()),
    progress=nullable(number()),
    started_at=TIME,
    completed_at=TIME,
    result=anything(),
)
WORKFLOW = obj(
    "id type name state created_at metadata",
    id=UUID,
    type=enum("chain", "group", "batch", "dag"),
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
NEW_CRON = obj(
    "name",
    name=text(pattern=r"^[a-z0-9][a-z0-9.-]*$", maxLength=255),
    cron=text("Five or six fields, `@daily` and the like, or `@every 30m`.", maxLength=255),
    expression=text("Another word for `cron`.", maxLength=255),
    timezone=text("An IANA name.", default="UTC", examples=["Europe/Berlin"]),
    type=TYPE,
    args=array(anything()),
    meta=free(),
    options=obj(**OPTIONS),
    job_template=ref("NewJob"),
    overlap_policy=enum("skip", "allow", "cancel_previous", "enqueue"),
    enabled=boolean(default=True),
    description=text(maxLength=2000),
) | {"anyOf": [{"required": ["type"]}, {"required": ["job_template"]}]}

STEP = obj(
    "type",
    type=text("A job type; or `chain`, `group`, `batch`, with `steps` or `jobs` inside."),
    args=array(anything()),
    meta=free(),
    options=obj(**OPTIONS),
    id=text("Names the step for `depends_on`.", maxLength=255),
    depends_on=array(text(maxLength=255)),
)
NEW_WORKFLOW = obj(
    type=enum("chain", "group", "batch", "dag"),
    name=text(maxLength=255),
    options=obj(**OPTIONS) | {"description": "Defaults of every step."},
    steps=array(ref("Step"), minItems=1),
    jobs=array(ref("Step"), minItems=1),
    callbacks=obj(on_complete=ref("Step"), on_success=ref("Step"), on_failure=ref("Step")),
) | {"description": "A chain or graph has `steps`, a group or batch `jobs`."}

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

COMPONENTS: dict[str, Schema] = {
    "Acknowledged": obj("acknowledged job_id id state attempt", **ACKED, completed_at=TIME),
    "Checkpoint": obj(
        "job_id sequence created_at checkpoint", **CHECKPOINT, checkpoint=obj(**CHECKPOINT)
    ),
    "CronJob": CRON,
    "CronRun": CRON_RUN,
    "Error": ERROR,
    "Event": EVENT,
    "Failed": obj("acknowledged job_id id state attempt max_attempts", **NACKED),
    "Job": JOB,
    "JobError": ERROR_ENTRY,
    "JobReply": obj("job", job=ref("Job"), deduplicated=boolean("It was there before.")),
    "ChangedJobReply": obj(
        "job", job={"allOf": [ref("Job"), {"type": "object", "properties": CHANGED}]}
    ),
    "JobState": enum(*STATE),
    "NewCronJob": NEW_CRON,
    "NewJob": NEW_JOB,
    "NewWorkflow": NEW_WORKFLOW,
    "Outcome": obj("status acknowledged job_id id", **NACKED, **ONE_OF_MANY)
    | {"description": "What became of one of several outcomes."},
    "Pagination": PAGINATION,
    "Step": STEP,
    "Workflow": WORKFLOW,
    "WorkflowNode": WORKFLOW_NODE,
    "WorkflowReply": obj("workflow", workflow=ref("Workflow")),
}
