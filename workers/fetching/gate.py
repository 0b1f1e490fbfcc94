"""Whether a worker may have more jobs, how many, and which: what decides about a fetch.

Nothing for one that is, or was told to be, quiet or terminating (§6.6), that was declared dead and
has not been heard since, or that already runs all it can (§8.2). One that nobody knows is served
like one that declared nothing.
"""

from __future__ import annotations

from functools import partial

from jobs.engine import Admission, Gate
from jobs.spec.worker_ids import SEPARATOR

from ..models import Worker
from ..models.querysets import holdings
from .abilities import ITSELF, able


def evaluate(worker_id: str, *, registered: bool = False) -> Admission:
    """Say it of a worker; `GATE` and `REGISTERED` do in one statement."""
    worker = Worker.objects.filter(pk=worker_id).first() if worker_id else None
    if registered and (worker is None or worker.registered_at is None):
        return Admission(0, (), {})
    if worker is None:
        return Admission(None, able(worker_id, [], []), {})
    words = able(worker_id, worker.labels, worker.capabilities)
    versions = worker.job_versions or {}
    if not worker.may_fetch:
        return Admission(0, words, versions)
    if worker.concurrency is None:
        return Admission(None, words, versions)
    return Admission(worker.concurrency - holdings([worker]).count(), words, versions)


# The condition is `may_fetch`, and `able` what `abilities` says: words like `worker:…` are not a
# worker's to say of itself.
SQL = """
        SELECT CASE WHEN {unknown}
                    WHEN NOT (worker.state = 'running' AND worker.directive IN ('', 'running')
                              OR worker.state = 'quiet' AND worker.directive = 'running') THEN 0
                    WHEN worker.concurrency IS NULL THEN NULL
                    ELSE worker.concurrency - (
                         SELECT count(*)
                           FROM ojs_jobs_job
                          WHERE reserved_by = me.id
                            AND reserved_for IS NOT NULL
                            AND (worker.project = '' OR project IN ('', worker.project)))
                    END AS room,
               CASE WHEN me.id = '' THEN '[]' ELSE (
                    SELECT coalesce(jsonb_agg(word), '[]')
                      FROM jsonb_array_elements_text(worker.labels || worker.capabilities) AS word
                     WHERE NOT starts_with(word, '{itself}'))
                    || to_jsonb('{itself}' || regexp_replace(me.id, '^.*{separator}', ''))
                    END AS able,
               nullif(worker.job_versions, '{{}}') AS versions
          FROM (SELECT %(worker_id)s::varchar(255) AS id) AS me
     LEFT JOIN ojs_workers_worker AS worker ON worker.worker_id = me.id"""
WORDS = {"itself": ITSELF, "separator": SEPARATOR}
GATE = Gate(SQL.format(unknown="worker.worker_id IS NULL THEN NULL", **WORDS), evaluate)
REGISTERED = Gate(
    SQL.format(unknown="worker.registered_at IS NULL THEN 0", **WORDS),
    partial(evaluate, registered=True),
)
"""Where a worker must register before it is given anything (AGQ §6)."""
