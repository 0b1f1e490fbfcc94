"""The forms of what is sent."""

from __future__ import annotations

from jobs.spec.worker_ids import SEPARATOR

from .schema import (
    Schema,
    anything,
    array,
    boolean,
    enum,
    free,
    integer,
    number,
    obj,
    ref,
    text,
)

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

NUMBERS = r"(0|[1-9][0-9]{0,8})(\.(0|[1-9][0-9]{0,8})){0,2}"
VERSIONED_TYPE = text(
    "Dotted words, `email.send`, and perhaps the version of the arguments: `email.send@2.0`.",
    pattern=rf"^[a-zA-Z][a-zA-Z0-9_-]*(\.[a-zA-Z][a-zA-Z0-9_-]*)*(@{NUMBERS})?$",
    maxLength=255,
)
VERSION: Schema = {
    "description": "Of the arguments (OJS job versioning §5): only workers that take it are given "
    "the job. It counts before the one in `type`.",
    "oneOf": [
        text(pattern=rf"^{NUMBERS}$", examples=["2.0"]),
        integer(minimum=0, maximum=999_999_999),
    ],
}

QUEUE = text(pattern=r"^[a-z0-9][a-z0-9.-]*$", maxLength=128, default="default")

WHEN: Schema = {
    "description": "An RFC 3339 timestamp with a time zone, or `+PT5S`: counted from now.",
    "anyOf": [
        text(format="date-time", examples=["2026-12-24T18:00:00Z"]),
        text(pattern=r"^\+P(T[0-9]{1,6}[SMH]|[0-9]{1,4}D)$", examples=["+PT5S"]),
    ],
}
PERIOD = text(
    "ISO 8601; these are the simplest.",
    pattern=r"^P(T[1-9][0-9]{0,5}[SMH]|[1-9][0-9]{0,3}D)$",
    examples=["PT5M"],
)
MILLISECONDS = integer(minimum=0, maximum=CENTURY * 1000)

SECONDS: Schema = {
    "description": "Whole seconds, or an ISO 8601 duration such as `PT5M`.",
    "oneOf": [integer(minimum=0, maximum=CENTURY), PERIOD],
}

BARRED: Schema = {"maxLength": 255, "not": {"pattern": SEPARATOR}}
"""Of ids of workers."""
WORKER_ID = text("Who sends this.", **BARRED)

ATTEMPT = integer(
    "Fences against an older attempt of the same worker.", minimum=1, maximum=2**31 - 1
)

RETRY = obj(
    max_attempts=integer("All executions, the first included.", minimum=0, maximum=10_000),
    initial_interval=PERIOD,
    backoff_coefficient=number(minimum=1, maximum=1_000_000),
    max_interval=PERIOD,
    jitter=boolean(),
    strategy=enum("none", "constant", "linear", "exponential", "polynomial"),
    non_retryable_errors=array(text(maxLength=255)),
    on_exhaustion=enum("discard", "dead_letter"),
) | {"description": "OJS retry §2. Every member may be left out."}

UNIQUE = obj(
    keys=array(enum("type", "queue", "args", "meta", "version"), minItems=1),
    args_keys=array(text(minLength=1)),
    meta_keys=array(text(minLength=1)),
    period=PERIOD | {"description": "How long a job counts as a duplicate."},
    states=array(enum(*STATE), minItems=1),
    on_conflict=enum("reject", "replace", "replace_except_schedule", "ignore"),
) | {"additionalProperties": False, "description": "OJS unique jobs §2."}

PACE = {
    "limit": integer(minimum=0, maximum=2**31 - 1),
    "period": PERIOD | {"description": "ISO 8601, 1 ms to 366 days."},
}
RATE = obj("limit period", **PACE, window=enum("sliding", "fixed"))
RATE_LIMITS = obj(
    concurrency=integer(minimum=0, maximum=2**31 - 1),
    rate=RATE,
    throttle=obj("limit period", **PACE, burst=integer(minimum=1, maximum=2**31 - 1)),
    on_limit=enum("wait", "reschedule", "drop"),
)
RATE_LIMIT = RATE_LIMITS | {
    "properties": {
        "key": text(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._:-]*$", maxLength=255),
        "max_per_second": integer("Limits this queue's jobs that say so.", minimum=0),
        **RATE_LIMITS["properties"],
    },
    "anyOf": [{"required": ["key"]}, {"required": ["max_per_second"]}],
    "description": "OJS rate limiting §6.",
}

OPTIONS = {
    "queue": QUEUE,
    "priority": integer(minimum=-100, maximum=100, default=0),
    "timeout_ms": MILLISECONDS | {"description": "Longest execution; 0: no limit of its own."},
    "timeout": SECONDS,
    "visibility_timeout_ms": integer(minimum=1, maximum=CENTURY * 1000),
    "total_timeout": integer(
        "Seconds for all attempts together, from its creation on.", minimum=1, maximum=CENTURY
    ),
    "enqueue_ttl": integer(
        "Seconds it may wait for its first attempt.", minimum=1, maximum=CENTURY
    ),
    "grace_period": integer(
        "Seconds its worker may take to clean up after `timeout`.", minimum=0, maximum=CENTURY
    ),
    "heartbeat_timeout": integer("Seconds its worker may be silent.", minimum=1, maximum=CENTURY),
    "delay_until": WHEN,
    "scheduled_at": WHEN,
    "expires_at": WHEN,
    "retry": RETRY,
    "max_attempts": integer(minimum=0, maximum=10_000),
    "unique": UNIQUE,
    "tags": array(text(maxLength=255)),
    "rate_limit": RATE_LIMIT,
    "pending": boolean("Wait for `…/activate`."),
    "result_ttl": integer("Seconds to keep the result; -1: for ever.", minimum=-1, maximum=CENTURY),
    "metadata": free("Merged into `meta`."),
}

NEW_JOB = obj(
    "type args",
    specversion=text("`1.0`", enum=["1.0", "1.0.0"]),
    id=text("A UUIDv7; left out, the server makes one.", format="uuid"),
    type=VERSIONED_TYPE,
    args=array(anything()),
    meta=free("The client's own; `meta.capabilities` names what a worker must be able to do."),
    schema=text(maxLength=2048),
    version=VERSION,
    options=obj(**OPTIONS),
) | {
    "description": "An enqueue request (OJS HTTP §9.1). The members of `options` may stand beside "
    "it, too. Unknown members are kept and returned."
}

JOB_ID = text("A job's id.", format="uuid")

ACK = {"job_id": JOB_ID, "worker_id": WORKER_ID, "attempt": ATTEMPT, "result": anything()}

FAILURE: Schema = {
    "description": "What went wrong: an object, or a text.",
    "oneOf": [
        obj(
            "message",
            type=text(maxLength=255),
            code=text(maxLength=255),
            message=text(),
            retryable=boolean("`false` ends the job whatever its policy says."),
            details=free(),
            backtrace=array(text()),
            rate_limit_until=WHEN,
        )
        | {"anyOf": [{"required": ["type"]}, {"required": ["code"]}]},
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
