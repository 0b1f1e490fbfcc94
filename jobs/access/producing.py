"""Permissions for the commands of `jobs`: OJS HTTP for producers and operators, the Admin API."""

from __future__ import annotations

from functools import partial

from ..models import Scope
from .table import Binding, Command, OfProject, declare

PRODUCE, WORK, OPERATE = (Scope.PRODUCE,), (Scope.WORK,), (Scope.OPERATE,)
BOTH = (Scope.PRODUCE, Scope.WORK)
READ, WRITE, PURGE = (Scope.ADMIN_READ,), (Scope.ADMIN_WRITE,), (Scope.ADMIN_PURGE,)
OWN, SHARED, NOTHING = OfProject.OWN, OfProject.SHARED, OfProject.NOTHING

ojs = partial(Command, Binding.OJS)
admin = partial(Command, Binding.ADMIN)

EVENTS = "Those of the project's own jobs."
GONE = "Of a job that was deleted, only for keys without a project."
FIGURES = "Its figures are those of the project's own jobs."

declare(
    ojs("manifest.retrieve", (), SHARED, reads=True, is_open=True),
    # Jobs. Clients that enqueue see arguments, results and errors in clear.
    ojs("jobs.create", PRODUCE, OWN),
    ojs("jobs.batch", PRODUCE, OWN),
    ojs("jobs.retrieve", PRODUCE, OWN, reads=True),
    ojs("jobs.list", PRODUCE, OWN, reads=True, hides=True),
    ojs("jobs.retries", PRODUCE, OWN, reads=True),
    ojs("jobs.cancel", PRODUCE, OWN),
    ojs("jobs.activate", PRODUCE, OWN),
    ojs("jobs.prioritize", PRODUCE, OWN),
    ojs("bulk.enqueue", PRODUCE, OWN),
    ojs("bulk.cancel", PRODUCE, OWN),
    ojs("bulk.retry", OPERATE, OWN),
    ojs("bulk.delete_finished", OPERATE, OWN),
    ojs("results.retrieve", PRODUCE, OWN, reads=True),
    ojs("results.bulk", PRODUCE, OWN),
    ojs("workflows.list", PRODUCE, OWN, reads=True),
    ojs("workflows.create", PRODUCE, OWN),
    ojs("workflows.retrieve", PRODUCE, OWN, reads=True),
    ojs("workflows.progress", PRODUCE, OWN, reads=True),
    ojs("workflows.cancel", PRODUCE, OWN),
    ojs("cron.list", PRODUCE, OWN, reads=True),
    ojs("cron.create", PRODUCE, OWN),
    ojs("cron.retrieve", PRODUCE, OWN, reads=True),
    ojs("cron.history", PRODUCE, OWN, reads=True),
    ojs("cron.update", PRODUCE, OWN),
    ojs("cron.destroy", PRODUCE, OWN),
    ojs("cron.pause", PRODUCE, OWN),
    ojs("cron.resume", PRODUCE, OWN),
    ojs("cron.trigger", PRODUCE, OWN),
    ojs("events.list", PRODUCE, OWN, reads=True, note=EVENTS),
    ojs("history.of_job", PRODUCE, OWN, reads=True, note=GONE),
    ojs("history.lineage", PRODUCE, OWN, reads=True),
    ojs("history.search", PRODUCE, OWN, reads=True, note=EVENTS),
    ojs("history.statistics", PRODUCE, NOTHING, reads=True),
    ojs("history.purge_job", PURGE, OWN, note=GONE),
    ojs("history.purge", PURGE, NOTHING),
    ojs("live.of_job", PRODUCE, OWN, reads=True),
    ojs("live.of_queue", PRODUCE, OWN, reads=True, note=EVENTS),
    ojs("live.of_channel", PRODUCE, OWN, reads=True, note=EVENTS),
    ojs("live.socket", PRODUCE, OWN, reads=True, note=EVENTS),
    # Shared by all projects
    ojs("queues.list", PRODUCE, SHARED, reads=True),
    ojs("queues.retrieve", PRODUCE, SHARED, reads=True, note=FIGURES),
    ojs("queues.stats", PRODUCE, SHARED, reads=True, note=FIGURES),
    ojs("queues.priorities", PRODUCE, SHARED, reads=True, note=FIGURES),
    ojs("queues.configuration", PRODUCE, SHARED, reads=True),
    ojs("queues.create", OPERATE, NOTHING),
    ojs("queues.configure", OPERATE, NOTHING),
    ojs("queues.pause", OPERATE, NOTHING),
    ojs("queues.drain", OPERATE, NOTHING),
    ojs("queues.resume", OPERATE, NOTHING),
    ojs("queues.destroy", OPERATE, NOTHING),
    ojs("queues.purge", OPERATE, OWN),
    ojs("rate-limits.list", PRODUCE, NOTHING, reads=True),
    ojs("rate-limits.retrieve", PRODUCE, NOTHING, reads=True),
    ojs("rate-limits.override", OPERATE, NOTHING),
    ojs("rate-limits.restore", OPERATE, NOTHING),
    ojs("job-specs.list", WORK, SHARED, reads=True),
    ojs("job-specs.create", OPERATE, NOTHING),
    ojs("job-specs.destroy", OPERATE, NOTHING),
    # A schema holds for every project's jobs of its type.
    ojs("schemas.list", BOTH, SHARED, reads=True),
    ojs("schemas.retrieve", BOTH, SHARED, reads=True),
    ojs("schemas.versions", BOTH, SHARED, reads=True),
    ojs("schemas.version", BOTH, SHARED, reads=True),
    ojs("schemas.register", OPERATE, NOTHING),
    ojs("schemas.destroy", OPERATE, NOTHING),
    ojs("schemas.destroy_version", OPERATE, NOTHING),
    # Those who may see what is hidden from others.
    ojs("codec.encode", (Scope.ADMIN_ARGS,), NOTHING),
    ojs("codec.decode", (Scope.ADMIN_ARGS,), NOTHING),
    # The dead letter is for operators, and redacted as in the Admin API.
    ojs("dead-letter.list", OPERATE, OWN, reads=True, hides=True),
    ojs("dead-letter.retrieve", OPERATE, OWN, reads=True, hides=True),
    ojs("dead-letter.retry", OPERATE, OWN, hides=True),
    ojs("dead-letter.destroy", OPERATE, OWN),
    ojs("dead-letter.purge", PURGE, OWN),
    ojs("reset.reset", (), SHARED, is_open=True, note="Exists only with `CONFORMANCE_MODE`."),
)
declare(
    admin("jobs.list", READ, OWN, reads=True, note="Shows neither arguments nor results."),
    admin("jobs.retrieve", READ, OWN, reads=True, hides=True),
    admin("jobs.cancel", WRITE, OWN, hides=True),
    admin("jobs.retry", WRITE, OWN, hides=True),
    admin("jobs.prioritize", WRITE, OWN, hides=True),
    admin("bulk.retry", WRITE, OWN),
    admin("bulk.retry_dead", WRITE, OWN),
    admin("bulk.cancel", WRITE, OWN),
    admin("bulk.delete_finished", PURGE, OWN),
    admin("dead-letter.list", READ, OWN, reads=True, hides=True),
    admin("dead-letter.stats", READ, OWN, reads=True),
    admin("dead-letter.retrieve", READ, OWN, reads=True, hides=True),
    admin("dead-letter.retry", WRITE, OWN, hides=True),
    admin("dead-letter.destroy", PURGE, OWN),
    admin("dead-letter.purge", PURGE, OWN),
    admin("queues.list", READ, NOTHING, reads=True),
    admin("queues.retrieve", READ, NOTHING, reads=True),
    admin("queues.stats", READ, NOTHING, reads=True),
    admin("queues.priorities", READ, NOTHING, reads=True),
    admin("queues.configuration", READ, NOTHING, reads=True),
    admin("queues.configure", WRITE, NOTHING),
    admin("queues.limit", WRITE, NOTHING),
    admin("queues.pause", WRITE, NOTHING),
    admin("queues.drain", WRITE, NOTHING),
    admin("queues.resume", WRITE, NOTHING),
    admin("queues.purge", PURGE, NOTHING),
    admin("queues.destroy", PURGE, NOTHING),
    admin("schemas.list", READ, SHARED, reads=True),
    admin("schemas.retrieve", READ, SHARED, reads=True),
    admin("schemas.register", WRITE, NOTHING),
    admin("schemas.destroy", WRITE, NOTHING),
    admin("schemas.validation", READ, SHARED, reads=True),
    admin("schemas.set_validation", WRITE, NOTHING),
    admin("tenants.list", READ, NOTHING, reads=True),
    admin("tenants.retrieve", READ, NOTHING, reads=True),
    admin("tenants.stats", READ, NOTHING, reads=True),
    admin("tenants.jobs", READ, NOTHING, reads=True, note="Without arguments and results."),
    admin("tenants.configure", WRITE, NOTHING),
    admin("tenants.limit", WRITE, NOTHING),
    admin("tenants.destroy", WRITE, NOTHING),
    admin("history.retrieve", READ, NOTHING, reads=True),
    admin("execution.of_job", READ, OWN, reads=True, hides=True, note=GONE),
    admin("execution.lineage", READ, OWN, reads=True),
    admin("execution.search", READ, OWN, reads=True, hides=True, note=EVENTS),
    admin("execution.statistics", READ, NOTHING, reads=True),
    admin("execution.purge_job", PURGE, OWN, note=GONE),
    admin("execution.purge", PURGE, NOTHING),
    admin("system.maintenance", READ, NOTHING, reads=True),
    admin("system.switch", WRITE, NOTHING),
    admin("system.config", READ, NOTHING, reads=True),
)
