"""Errors of the engine, with their codes (OJS errors §4, HTTP binding §16.3).

Every binding has one table that translates them into its own format.
"""

from __future__ import annotations

from typing import Any


class OJSError(Exception):
    """A request that cannot be served. `details` is safe to show to the client."""

    code = "backend_error"
    retryable = False
    hint = ""

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details
        if hint:
            self.hint = hint


class InvalidRequest(OJSError):
    """The request is invalid; `details["field"]` names the member."""

    code = "invalid_request"


class UpgradeRequired(InvalidRequest):
    """The address accepts only WebSocket connections."""


class InvalidPayload(OJSError):
    """The body is not a JSON object that can be read."""

    code = "invalid_payload"


class InvalidWorkflow(InvalidRequest):
    """The workflow is invalid by OJS workflows §11.1."""

    code = "invalid_workflow"


class InvalidRetryPolicyRequest(InvalidRequest):
    """The retry policy is invalid by OJS retry §11."""


class InvalidSchema(InvalidRequest):
    """It is no JSON Schema 2020-12, or asks for more than is evaluated (OJS HTTP §15.2)."""


class InvalidArguments(InvalidRequest):
    """The arguments do not match the job type's schema (OJS schema registry §7.3).

    `details["errors"]` names each mistake with a JSON pointer.
    """

    code = "validation_error"


class TenantRequired(InvalidRequest):
    """A job has no tenant, and `OJS["MULTI_TENANCY"]` is `required` (OJS multi-tenancy §5.1)."""

    code = "validation_error"
    hint = "Send 'meta.tenant_id', the header X-OJS-Tenant, or the key of a project."


class BreakingChange(InvalidRequest):
    """A minor version of a schema has breaking changes (OJS schema registry §8.4)."""

    code = "validation_error"


class BodyTooLarge(OJSError):
    """The body exceeds `OJS["MAX_BODY_SIZE"]` (OJS JSON format §8.1)."""

    code = "envelope_too_large"


class CheckpointTooLarge(BodyTooLarge):
    """A checkpoint exceeds 1 MB (OJS durable execution §9.1)."""


class MetadataTooLarge(BodyTooLarge):
    """`meta` exceeds 64 KB (OJS payload limits §4.3)."""

    code = "metadata_too_large"


class JobTooLarge(BodyTooLarge):
    """A job exceeds `max_job_size` of its tenant."""


class UnsupportedCompression(OJSError):
    """The body is compressed in an unsupported way (OJS payload limits §6)."""

    code = "unsupported_compression"
    hint = "Send the body uncompressed, or with 'Content-Encoding: gzip'."


class Unsupported(OJSError):
    """An unsupported version of the specification or an unsupported feature."""

    code = "unsupported"


class ExtensionNotSupported(Unsupported):
    """The request needs an extension that this server does not have."""

    code = "EXTENSION_NOT_SUPPORTED"
    hint = "`GET /ojs/manifest` lists the extensions of this server."


class NotInstalled(Unsupported):
    """The request needs an extra that is not installed on this server."""


class NeedsEventLoop(NotInstalled):
    """The request is for a stream, and this server has no event loop to write it."""

    def __init__(self) -> None:
        super().__init__(
            "This server cannot stream.",
            hint="Serve `ojs_project.asgi:application`, or your site with `JobServer.around()`.",
        )


class NotFound(OJSError):
    """No such job, queue, worker or key."""

    code = "not_found"
    hint = "Check the identifier; finished jobs are deleted when their retention has passed."


class JobNotFound(NotFound):
    def __init__(self, job_id: object) -> None:
        super().__init__(f"Job '{job_id}' not found.", resource_type="job", resource_id=str(job_id))


class WorkflowNotFound(NotFound):
    def __init__(self, workflow_id: object) -> None:
        super().__init__(
            f"Workflow '{workflow_id}' not found.",
            resource_type="workflow",
            resource_id=str(workflow_id),
        )


class WorkerNotFound(NotFound):
    hint = "Check the identifier; workers that left are deleted when their retention has passed."

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"Worker '{worker_id}' not found.", resource_type="worker", resource_id=worker_id
        )


class ResultTooLarge(OJSError):
    """The result exceeds `OJS["MAX_RESULT_SIZE"]`; the job stays active (OJS results §7.2)."""

    code = "RESULT_TOO_LARGE"
    hint = "Store the result elsewhere, and send a reference to it."


class ResultPruned(OJSError):
    """The result was deleted: its `result_ttl` has passed (OJS results §8.2)."""

    code = "RESULT_PRUNED"


class WaitTimeout(OJSError):
    """The job has not finished within the time that the caller would wait (OJS results §8.2)."""

    code = "timeout"
    retryable = True


class UnfinishedBody(OJSError):
    """The request body did not arrive: the client disconnected, or exceeded `BODY_TIMEOUT`."""

    code = "timeout"
    retryable = True


class DuplicateJob(OJSError):
    """A job with this id or unique key exists (OJS core §5.5.3, unique jobs §5.1)."""

    code = "duplicate"

    @classmethod
    def within(cls, first: int, index: int, **details: Any) -> DuplicateJob:
        """A job duplicates an earlier one of the same request, and neither is stored."""
        return cls(
            f"The jobs at index {first} and {index} of this request are duplicates.",
            index=index,
            first_index=first,
            **details,
        )


class Conflict(OJSError):
    """The current state does not allow the request."""

    code = "conflict"


class InvalidTransition(Conflict):
    """The job's state does not allow the operation (OJS core §6.3)."""


class ReservationLost(Conflict):
    """The caller does not hold the job, or no longer does (OJS worker protocol §5.6)."""


class SchemaExists(Conflict):
    """The version has a schema already (OJS schema registry §4.1)."""


class SchemaInUse(Conflict):
    """Live workers declare that they take this version (OJS schema registry §4.4)."""


FEWER = "Send fewer jobs at once."
"""Of a limit that a batch exceeds by itself: waiting does not help."""


class QueueFull(OJSError):
    """The queue has reached its bound (OJS backpressure §5.1)."""

    code = "QUEUE_FULL"
    retryable = True
    hint = "Wait as long as Retry-After says; the queue is bounded by its configuration."
    RETRY_AFTER = 5
    """Seconds after which the producer may retry."""

    def __init__(
        self, queue: str, depth: int, bound: int, strategy: str, job_type: str, *, size: int = 1
    ) -> None:
        """
        Args:
            size: how many jobs were to be enqueued at once.
        """
        super().__init__(
            f"Queue '{queue}' has reached its depth bound ({bound}).",
            queue=queue,
            depth=depth,
            bound=bound,
            strategy=strategy,
        )
        self.job_type = job_type
        if 1 < size > bound:
            self.retryable = False
            self.message = f"The {size} jobs exceed the depth bound of queue '{queue}' ({bound})."
            self.hint = FEWER


class TenantLimitExceeded(OJSError):
    """A tenant is at one of its limits (OJS multi-tenancy §8.2)."""

    code = "TENANT_LIMIT_EXCEEDED"
    retryable = True
    hint = "Wait as long as Retry-After says; an operator sets the limits of tenants."

    def __init__(
        self,
        tenant: str,
        limit: str,
        current: int,
        maximum: int,
        *,
        size: int = 1,
        retry_after: int = 30,
        remaining: int | None = None,
    ) -> None:
        """
        Args:
            size: how many jobs were to be enqueued at once.
            limit: its name in the tenant's limits, such as `max_queue_depth`.
            retry_after: seconds after which the producer may retry.
            remaining: of a rate: how many jobs would have been accepted.
        """
        super().__init__(
            f"Tenant '{tenant}' has exceeded {limit} ({maximum}).",
            tenant_id=tenant,
            limit=limit,
            current=current,
            maximum=maximum,
        )
        self.retry_after = retry_after
        self.remaining = remaining
        if 1 < size > maximum:
            self.retryable = False
            self.message = f"The {size} jobs exceed {limit} ({maximum}) of tenant '{tenant}'."
            self.hint = FEWER


class TooManyConnections(OJSError):
    """The client has reached its limit of open connections for events (OJS realtime §5.2).

    `details["limit"]` is the limit.
    """

    code = "rate_limited"
    retryable = True
    RETRY_AFTER = 5


class TooManySubscriptions(TooManyConnections):
    """The WebSocket has reached its limit of subscriptions."""

    retryable = False


class QueueClosed(OJSError):
    """The queue is draining: it accepts no new jobs (OJS queue configuration §5.1)."""

    code = "queue_draining"
    retryable = True


class JobTypeNotAllowed(OJSError):
    """The queue accepts only other types (OJS queue configuration §6.5)."""

    code = "JOB_TYPE_NOT_ALLOWED"


class BatchTooLarge(OJSError):
    """More items than one request may carry (OJS bulk operations §9.1)."""

    code = "BATCH_SIZE_EXCEEDED"

    def __init__(self, size: int, most: int) -> None:
        super().__init__(
            f"Batch size {size} exceeds maximum of {most}.", size=size, max_batch_size=most
        )


class InMaintenance(OJSError):
    """The server accepts no jobs now (OJS admin API §12.1)."""

    code = "service_unavailable"
    retryable = True
    hint = "Try again when the maintenance has ended."


class BackendUnavailable(OJSError):
    """What the server keeps its data in cannot serve the request now (OJS HTTP §16.2)."""

    retryable = True
    RETRY_AFTER = 1
    """Seconds after which a retry makes sense."""


class DatabaseUnavailable(BackendUnavailable):
    """The database cannot serve the request now; see `trouble`."""


class StorageUnavailable(BackendUnavailable):
    """The storage of large arguments cannot be used now (OJS payload limits §5)."""


class DatabaseRefused(OJSError):
    """The database rejects the statement, and would do so again: a bug of the server."""


class NotAuthenticated(OJSError):
    """The request has no valid key (OJS security §6)."""

    code = "unauthenticated"
    hint = "Send 'Authorization: Bearer <API key>'."

    def __init__(
        self, message: str, *, reason: str = "no_key", key: str = "", **details: Any
    ) -> None:
        """
        Args:
            reason: one word for the audit.
            key: name of the key, if known, also for the audit; the client does not see it.
        """
        super().__init__(message, **details)
        self.reason = reason
        self.key = key


class KeyExpired(NotAuthenticated):
    """The key, or this secret of it, has expired (OJS errors §5)."""

    code = "token_expired"
    hint = "Ask for a new key, or for the key's new secret."


class PermissionDenied(OJSError):
    code = "permission_denied"
