"""The types of events in the record: what each says happened, and the members of its data.

Beside `data` every event has its time and its subject: the id of a job, a workflow or a worker, or
the name of a queue, a rate limit or a schedule. Events about jobs also have their queue, type and
attempt.
"""

from __future__ import annotations

TYPES = {
    # Jobs (OJS events §3.1)
    "job.scheduled": "A job was enqueued for later, or put off by a rate limit. "
    "`scheduled_at`, `priority`.",
    "job.enqueued": "A job became available: new (`priority`), due, activated, or retried by an "
    "operator (`retried`). `previous_state` unless it is new or due; `activated_by` if known.",
    "job.started": "A worker claimed it: an attempt begins.",
    "job.heartbeat": "Its visibility timeout began anew. `visible_until`.",
    "job.progress": "Its worker reported progress, at most once a second. `progress_percent`, "
    "`progress_message`, and the members of the next event.",
    "progress.updated": "The same report under the name in OJS progress. `progress`, `message`, "
    "`data`.",
    "job.completed": "It was acknowledged. `duration_ms`.",
    "job.failed": "An attempt failed. `error` with `retryable`, and the `state` that follows.",
    "job.retrying": "Another attempt follows. `error`, `max_attempts`, `next_retry_at`.",
    "job.stalled": "Its visibility timeout passed. `timeout_kind`, `limit_seconds`, "
    "`elapsed_seconds`.",
    "job.timeout": "It ran longer than its `timeout`. As above.",
    "job.total_timeout": "Its `total_timeout` passed. As above.",
    "job.ttl_expired": "Its `enqueue_ttl` passed before it began. As above.",
    "job.expired": "It was discarded because its `expires_at` passed. `created_at`, `expired_at`, "
    "`ttl_ms`.",
    "job.retry_exhausted": "It failed and has no attempts left. `total_attempts`, `last_error`.",
    "job.discarded": "It failed for good. `total_attempts`, `last_error`.",
    "job.dead_lettered": "It was kept in the dead letter. `total_attempts`, `last_error`, and the "
    "`tenant_id` of its job, while there is one.",
    "job.cancelled": "It was cancelled. `previous_state`; `cancelled_by`, `reason` if known.",
    "priority.changed": "`previous_priority`, `new_priority`; `changed_by` if known.",
    # Queues (§3.2), bounds
    "queue.created": "A queue was created before its first job.",
    "queue.paused": "A queue hands out no jobs. `paused_by`, `reason`.",
    "queue.draining": "A queue accepts no new jobs.",
    "queue.resumed": "A queue hands out and accepts jobs again. `resumed_by`.",
    "queue.config_updated": "The policy of a queue, or the default one, changed. `changed`.",
    "queue.deleted": "A queue was deleted. `strategy`.",
    "queue.full": "An enqueue was refused because the queue was full. `depth`, `bound`.",
    "queue.overflow": "Old jobs were discarded to make room. `dropped`.",
    "backpressure.rejected": "The same under the name in OJS backpressure. `job_type` as well.",
    "backpressure.dropped": "One of the jobs of `queue.overflow`. `job_id`, `job_type`.",
    "backpressure.warning": "A queue is nearly full. `depth`, `bound`.",
    "backpressure.cleared": "It no longer is. `depth`, `bound`.",
    "dead_letter.pruned": "Jobs of a queue's dead letter were deleted: too old, or too many. "
    "`pruned`.",
    # Rate limits
    "rate_limit.exceeded": "Jobs wait for a rate limit. `key`, `strategy`, `limit`, `current`.",
    "rate_limit.released": "A job that waited for one begins. `key`, `strategy`, `job_id`.",
    "rate_limit.dropped": "A job was discarded by a rate limit. `key`, `job_id`, `job_type`.",
    "rate_limit.dynamic_adjusted": "A limit was changed while it is in use. `key` and the change.",
    # Workflows (§3.3)
    "workflow.created": "`workflow_id`, `workflow_type`, `workflow_name`, `jobs`.",
    "workflow.started": "Its first job began. As above, and `total_steps`.",
    "workflow.step_completed": "A step of a chain or graph completed. `job_id`, `step_type`, "
    "`step_index`, `step_id`, `state`, `duration_ms`, `steps_remaining`.",
    "workflow.step_failed": "A step of a chain or graph failed. As above.",
    "workflow.job_completed": "A job of a group or batch completed. `job_id`, `step_type`, "
    "`step_index`, `step_id`, `state`, `duration_ms`.",
    "workflow.job_failed": "A job of a group or batch failed. As above.",
    "workflow.callback_fired": "A callback of a batch was enqueued. `callback`, `job_id`.",
    "workflow.completed": "It ended well.",
    "workflow.failed": "It ended with a failure. `error`, `failed_step_id` and `failed_step_type`: "
    "of the job, the workflow inside or the callback that failed.",
    "workflow.cancelled": "It was cancelled.",
    "workflow.compensating": "A step of a saga failed, and what completed before it is undone. "
    "`failed_step_index`, `failed_step_id`, `error`.",
    "workflow.compensation_fired": "The job that undoes a step was enqueued. `step_index`, "
    "`step_id`, `job_id`.",
    "workflow.compensation_completed": "It completed. As above, and `step_type`, the job's type.",
    "workflow.compensation_failed": "It failed, and so does the saga. As above.",
    "workflow.compensated": "All that a saga completed before its failure is undone.",
    # Schedules (§3.5)
    "cron.triggered": "A schedule enqueued a job. `cron_name`, `cron_expression`, `timezone`, "
    "`job_type`, `job_id`, `run_count`, `scheduled_at`, `actual_time`.",
    "cron.skipped": "An occurrence of a schedule enqueued no job. `cron_name`, `cron_expression`, "
    "`timezone`, `job_type`, `scheduled_time`, `reason`.",
    # Workers (§3.4)
    "worker.started": "It registered. `queues`, `concurrency`.",
    "worker.quiet": "It reports that it takes no more jobs. `active_jobs`.",
    "worker.heartbeat": "It was heard (`RECORD_HEARTBEATS`).",
    "worker.stopped": "It left (`reason`: `shutdown`; `uptime_ms`) or died (`error`).",
    "worker.alert": "A Rota worker sent a message for operators. `message`, `level`.",
    # Tenants (OJS multi-tenancy §11.1)
    "tenant.created": "A tenant was configured for the first time. `tenant_id`.",
    "tenant.updated": "Its limits or its share were changed. `tenant_id`, `changed`, `reason`.",
    "tenant.limit_exceeded": "An enqueue exceeded a limit, and was refused unless `soft`. "
    "`tenant_id`, `limit`, `current`, `maximum`, `soft`.",
    # Worker pools (OJS fair scheduling §11.1)
    "scheduling.rebalanced": "The queues, weights or strategy of a pool were changed. `pool`, "
    "`previous_strategy`, `new_strategy`.",
    "scheduling.pool_overloaded": "A fetch found the limit of a pool reached. `pool`, "
    "`active_jobs`, `waiting_jobs`.",
    "scheduling.queue_starved": "Jobs of a queue waited for longer than the rotation interval, "
    "until its turn was forced. `pool`, `queue`, `duration`, `available_count`.",
    # Webhooks (OJS webhooks §11.1)
    "webhook.subscription.created": "A subscription was made. `subscription_id`, `events`.",
    "webhook.subscription.deleted": "A subscription was deleted. As above.",
    "webhook.delivered": "A delivery succeeded. `subscription_id`, `event_type`, `tries`, "
    "`duration_ms`, `status_code`.",
    "webhook.failed": "An attempt failed, and another follows. As above, and `error`.",
    "webhook.dead": "A delivery failed for good. As above; without `duration_ms` if its job was "
    "cancelled, or its worker died in the last attempt.",
}
