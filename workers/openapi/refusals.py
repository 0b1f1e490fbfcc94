"""Errors that an endpoint may raise, with their meaning there."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.errors import (
    BatchTooLarge,
    BodyTooLarge,
    BreakingChange,
    CheckpointTooLarge,
    Conflict,
    DatabaseUnavailable,
    DuplicateJob,
    ExtensionNotSupported,
    InMaintenance,
    InvalidArguments,
    InvalidPayload,
    InvalidRequest,
    InvalidRetryPolicyRequest,
    InvalidSchema,
    InvalidWorkflow,
    JobNotFound,
    JobTooLarge,
    JobTypeNotAllowed,
    KeyExpired,
    MetadataTooLarge,
    NeedsEventLoop,
    NotAuthenticated,
    NotFound,
    NotInstalled,
    OJSError,
    PermissionDenied,
    QueueClosed,
    QueueFull,
    ResultPruned,
    ResultTooLarge,
    SchemaExists,
    SchemaInUse,
    TenantLimitExceeded,
    TenantRequired,
    TooManyConnections,
    UnfinishedBody,
    Unsupported,
    UnsupportedCompression,
    UpgradeRequired,
    WaitTimeout,
    WorkflowNotFound,
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that an endpoint may raise, and its meaning there."""

    kind: type[OJSError]
    description: str


Refusals = tuple[Refusal, ...]


def refuses(kind: type[OJSError], description: str) -> Refusals:
    return (Refusal(kind, description),)


ALWAYS = refuses(InvalidRequest, "The request is invalid; `details.field` names the member.")
OF_ITS_VERSION = (
    *refuses(Unsupported, "The spec version of `OJS-Version` is not supported."),
    *refuses(ExtensionNotSupported, "This server lacks what `OJS-Requires-Extension` names."),
)
OF_ITS_KEY = (
    *refuses(NotAuthenticated, "No API key, or one that is unknown or revoked."),
    *refuses(KeyExpired, "The API key has expired."),
    *refuses(PermissionDenied, "The API key does not permit this."),
)
OF_ITS_BODY = (
    *refuses(InvalidPayload, "The body is not a JSON object."),
    *refuses(UnfinishedBody, "The body did not arrive completely."),
    *refuses(BodyTooLarge, 'The body exceeds `OJS["MAX_BODY_SIZE"]`.'),
    *refuses(
        UnsupportedCompression, "The body's `Content-Encoding` is neither `identity` nor `gzip`."
    ),
)
OF_THE_DATABASE = refuses(DatabaseUnavailable, "The database is unavailable: try again.")

NO_JOB = refuses(JobNotFound, "There is no such job.")
KEPT = refuses(
    Conflict,
    "The workflow of the job has not ended, other jobs wait for it, or a row of the site's own "
    "keeps it.",
)
CANCELLED_AROUND = refuses(Conflict, "The workflow of the job was cancelled.")
NOT_IN_THAT_STATE = refuses(Conflict, "The job is not in a state that allows it.")
MAINTAINED = refuses(InMaintenance, "The server is in maintenance mode: try again later.")
LARGE_JOB = refuses(JobTooLarge, "A job is larger than those of its tenant may be.")
FULL_QUEUE = refuses(
    QueueFull,
    "The queue is full; `Retry-After` is the time to wait before the next request. If it is "
    "not `retryable`, the jobs are more than the queue may hold.",
)
FULL = (
    *FULL_QUEUE,
    *refuses(
        TenantLimitExceeded,
        "The tenant is at one of its limits; `Retry-After` is the time to wait. If it is not "
        "`retryable`, the jobs are more than the limit.",
    ),
    *LARGE_JOB,
    *refuses(TenantRequired, "The job has no tenant, and one is required."),
)
LARGE_META = refuses(MetadataTooLarge, "`meta` exceeds 64 KB of JSON.")
CLOSED = (
    *refuses(QueueClosed, "The queue is about to be deleted."),
    *refuses(JobTypeNotAllowed, "The queue does not accept jobs of this type."),
)

MISMATCH = refuses(
    InvalidArguments, "The arguments do not match the type's schema, whose mode is `strict`."
)

JOB_ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
EXAMPLES: dict[type[OJSError], OJSError] = {
    BatchTooLarge: BatchTooLarge(20_000, 10_000),
    BodyTooLarge: BodyTooLarge(
        "The request body may have at most 16777216 bytes.",
        field="envelope",
        max_bytes=16_777_216,
        actual_bytes=16_777_217,
    ),
    BreakingChange: BreakingChange(
        "Schema version 1.2.0 introduces breaking changes compared to 1.1.0. Use a major version "
        "bump (2.0.0).",
        breaking_changes=["Required field 'currency' was added"],
    ),
    CheckpointTooLarge: CheckpointTooLarge("A checkpoint may have at most 1048576 bytes."),
    Conflict: Conflict(
        "Cannot cancel job in terminal state 'completed'.",
        job_id=JOB_ID,
        current_state="completed",
    ),
    DatabaseUnavailable: DatabaseUnavailable("The database is unreachable."),
    DuplicateJob: DuplicateJob(f"Job '{JOB_ID}' exists already.", job_id=JOB_ID),
    ExtensionNotSupported: ExtensionNotSupported(
        "Extension 'urn:ojs:ext:multi-tenancy' is not supported by this server.",
        extension="urn:ojs:ext:multi-tenancy",
    ),
    InMaintenance: InMaintenance("The server is in maintenance and takes no jobs."),
    InvalidArguments: InvalidArguments(
        "Job arguments do not match schema for invoice.generate@2.0.0. /args/0: required property "
        "'currency' is missing.",
        validation_errors=["required property 'currency' is missing"],
        errors=[
            {
                "pointer": "/args/0",
                "keyword": "required",
                "message": "required property 'currency' is missing",
            }
        ],
    ),
    InvalidPayload: InvalidPayload("The request body must be a JSON object."),
    InvalidRequest: InvalidRequest("The 'type' field is required.", field="type"),
    InvalidRetryPolicyRequest: InvalidRetryPolicyRequest(
        "max_attempts must not be negative", field="retry.max_attempts"
    ),
    InvalidSchema: InvalidSchema(
        "The provided JSON Schema is not valid draft 2020-12, or not supported: $schema must "
        "reference draft 2020-12. (at /$schema)",
        schema_error="$schema must reference draft 2020-12.",
        pointer="/$schema",
    ),
    InvalidWorkflow: InvalidWorkflow(
        "Workflow validation failed: $.steps: The steps must be an array.", field="steps"
    ),
    JobNotFound: JobNotFound(JOB_ID),
    JobTooLarge: JobTooLarge(
        "The job has 2000 bytes of arguments and meta; those of the tenant 'acme-corp' may have "
        "1000.",
        tenant_id="acme-corp",
        limit="max_job_size",
        current=2000,
        maximum=1000,
    ),
    JobTypeNotAllowed: JobTypeNotAllowed(
        "Queue 'email' does not take jobs of type 'video.cut'.", queue="email"
    ),
    KeyExpired: KeyExpired("The API key has expired."),
    MetadataTooLarge: MetadataTooLarge(
        "Meta field size 70000 bytes exceeds maximum of 65536 bytes.", field="meta"
    ),
    NeedsEventLoop: NeedsEventLoop(),
    NotAuthenticated: NotAuthenticated("An API key is required."),
    NotFound: NotFound("Queue 'email' not found.", resource_type="queue", resource_id="email"),
    NotInstalled: NotInstalled("prometheus-client is not installed.", extra="metrics"),
    PermissionDenied: PermissionDenied("This API key lacks the scope 'produce'.", scope="produce"),
    QueueClosed: QueueClosed("Queue 'email' is draining.", queue="email"),
    QueueFull: QueueFull("email", 1000, 1000, "reject", "email.send"),
    ResultPruned: ResultPruned("Result expired at 2026-02-19T10:30:00.000Z", job_id=JOB_ID),
    ResultTooLarge: ResultTooLarge("The result has 2000000 bytes; 1048576 are allowed."),
    SchemaExists: SchemaExists("'invoice.generate@2.0.0' has a schema already."),
    SchemaInUse: SchemaInUse(
        "'invoice.generate@2.0.0' cannot be deleted: 2 live workers declare that they take this "
        "version.",
        workers=["worker-1", "worker-2"],
    ),
    TenantLimitExceeded: TenantLimitExceeded("acme-corp", "max_queue_depth", 50_000, 50_000),
    TenantRequired: TenantRequired(
        "The 'meta.tenant_id' field is required: every job belongs to a tenant.",
        field="meta.tenant_id",
    ),
    TooManyConnections: TooManyConnections(
        "This client keeps 100 connections for events open, which is all it may.", limit=100
    ),
    UnfinishedBody: UnfinishedBody("The request body did not arrive."),
    Unsupported: Unsupported("OJS version '2.0' is not supported.", supported=["1.0"]),
    UnsupportedCompression: UnsupportedCompression(
        "The Content-Encoding 'br' is not supported.", supported=["gzip"]
    ),
    UpgradeRequired: UpgradeRequired("This address takes WebSocket connections."),
    WaitTimeout: WaitTimeout(f"Job '{JOB_ID}' has not finished yet.", job_id=JOB_ID),
    WorkflowNotFound: WorkflowNotFound(JOB_ID),
}
"""Constructed as the code raises them, so that no example has a code that is never sent."""
