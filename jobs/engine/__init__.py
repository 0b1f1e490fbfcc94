"""Every way a job may change: `from jobs import engine; engine.claim(...)`."""

from ..spec.cron_requests import NewCronJob
from ..spec.reports import Completion, Failure
from ..store.claimed import ClaimedJob
from ..store.contract import VISIBILITY_TIMEOUT, WORKER_DEATH, Admission, Cause, Gate
from . import (
    bounds,
    bulk,
    bulk_operations,
    erasure,
    event_partitions,
    history,
    limits,
    pool_rules,
    pools,
    queue_marks,
    queue_policy,
    queues,
    schemas,
    stored_arguments,
    tenants,
)
from .bounds import relieve
from .bulk_selection import failed_with
from .checkpoints import Saved, clear_checkpoint, find_checkpoint, save_checkpoint
from .claim import ClaimOptions, claim, claim_chosen, claim_each, exchange
from .control import (
    Change,
    activate,
    cancel,
    cancel_jobs,
    delete_dead,
    lock_retriable,
    not_dead,
    pause,
    prioritize,
    resume,
    retry,
    retry_finished,
    retry_locked,
    retry_one,
    run_now,
)
from .cron import (
    RegisteredCron,
    change_cron,
    delete_cron,
    enqueue_due_schedules,
    let_time_pass,
    register_cron,
    run_cron_now,
    set_cron_enabled,
    switch_cron,
    upsert_cron,
)
from .dead_letter import forward_dead
from .dependencies import freed_by
from .enqueue import enqueue, enqueue_after
from .failure import fail, is_final
from .flow import release_more, repair
from .inheritance import results_of_workflow
from .inheritance import subtree as workflow_members
from .insertion import forget_queues, lock_for
from .lineage import children_of, find_lineage, lineage_of
from .outcomes import Outcome, refuse
from .progress import ProgressState, progress_of, progress_state, report_progress
from .reclaim import expire, reclaim
from .reservations import extend, keep_alive, last_reservation, reserve
from .retention import (
    deletable,
    in_one_pass,
    lock_deletable,
    prune_events,
    prune_jobs,
    prune_results,
    prune_workflows,
)
from .settle import complete, is_too_large, too_large
from .specs import Line, forget_specs, matching_types, register_specs, write_lines
from .timers import discard_expired, discard_overdrawn, promote_due, time_out
from .workflows import cancel_workflow, create_workflow

__all__ = [
    "VISIBILITY_TIMEOUT",
    "WORKER_DEATH",
    "Admission",
    "Cause",
    "Change",
    "ClaimOptions",
    "ClaimedJob",
    "Completion",
    "Failure",
    "Gate",
    "Line",
    "NewCronJob",
    "Outcome",
    "ProgressState",
    "RegisteredCron",
    "Saved",
    "activate",
    "bounds",
    "bulk",
    "bulk_operations",
    "cancel",
    "cancel_jobs",
    "cancel_workflow",
    "change_cron",
    "children_of",
    "claim",
    "claim_chosen",
    "claim_each",
    "clear_checkpoint",
    "complete",
    "create_workflow",
    "deletable",
    "delete_cron",
    "delete_dead",
    "discard_expired",
    "discard_overdrawn",
    "enqueue",
    "enqueue_after",
    "enqueue_due_schedules",
    "erasure",
    "event_partitions",
    "exchange",
    "expire",
    "extend",
    "fail",
    "failed_with",
    "find_checkpoint",
    "find_lineage",
    "forget_queues",
    "forget_specs",
    "forward_dead",
    "freed_by",
    "history",
    "in_one_pass",
    "is_final",
    "is_too_large",
    "keep_alive",
    "last_reservation",
    "let_time_pass",
    "limits",
    "lineage_of",
    "lock_deletable",
    "lock_for",
    "lock_retriable",
    "matching_types",
    "not_dead",
    "pause",
    "pool_rules",
    "pools",
    "prioritize",
    "progress_of",
    "progress_state",
    "promote_due",
    "prune_events",
    "prune_jobs",
    "prune_results",
    "prune_workflows",
    "queue_marks",
    "queue_policy",
    "queues",
    "reclaim",
    "refuse",
    "register_cron",
    "register_specs",
    "release_more",
    "relieve",
    "repair",
    "report_progress",
    "reserve",
    "results_of_workflow",
    "resume",
    "retry",
    "retry_finished",
    "retry_locked",
    "retry_one",
    "run_cron_now",
    "run_now",
    "save_checkpoint",
    "schemas",
    "set_cron_enabled",
    "stored_arguments",
    "switch_cron",
    "tenants",
    "time_out",
    "too_large",
    "upsert_cron",
    "workflow_members",
    "write_lines",
]
