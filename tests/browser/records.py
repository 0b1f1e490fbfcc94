"""Rows for the pages besides the fleet and its jobs: workflows, cron, specs, keys, the audit."""

from __future__ import annotations

from dataclasses import replace
from datetime import time

from django.utils import timezone

from jobs import engine, schemas
from jobs.access.audit import Actor, of_shell, record_action
from jobs.engine import Completion
from jobs.http.authentication import make_key
from jobs.models import RefusedFinish, Source, Workflow
from jobs.spec.lifecycle import State
from jobs.spec.pools import read_pool
from jobs.spec.workflow_plans import plan_of
from tests.factories import JobFactory, WorkerFactory, ago, ahead
from workers.alerts import evaluation
from workers.fleet import marks
from workers.fleet import orders as fleet
from workers.lifecycle import WorkerState
from workers.models import (
    Alert,
    AlertNotification,
    AlertRule,
    DeliveryState,
    WebhookDelivery,
    Worker,
)
from workers.webhooks import subscriptions

OPS = Actor("ann", Source.ADMIN, "192.0.2.7")


def etl(queue: str = "default") -> Workflow:
    """A workflow half way: one part done, one running, the others waiting."""

    def job(kind: str) -> dict[str, object]:
        return {"type": kind, "args": [], "options": {"queue": queue}}

    parts = [job("transform.csv"), job("transform.parquet"), job("transform.json")]
    mail = {
        "type": "batch",
        "jobs": [job("mail.send"), job("mail.send")],
        "callbacks": {"on_success": job("mail.report"), "on_failure": job("mail.alert")},
    }
    steps = [job("data.extract"), {"type": "group", "jobs": parts}, mail, job("data.load")]
    plan = plan_of({"type": "chain", "name": "etl", "steps": steps}, timezone.now())
    workflow = engine.create_workflow(plan)
    (first,) = engine.claim([queue])
    engine.complete([Completion(first.id)])
    one, two = engine.claim([queue], count=2)
    engine.complete([Completion(one.id)])
    engine.report_progress(two.id, value=0.6)
    return workflow


def keep() -> None:
    """Rows that give the remaining pages something to show."""
    etl("etl")
    for state in State:
        JobFactory(queue="reports", **{} if state == State.AVAILABLE else {state: True})
    WorkerFactory(worker_id="old-1", dead=True)
    WorkerFactory(worker_id="old-2", left=True)
    WorkerFactory(worker_id="old-3", left=True, flagged_at=ago(60))
    configure()
    Worker.objects.filter(pk="web-5").update(
        protocol="rota", specs={"email.send": "v2", "image.resize": "v6"}
    )
    RefusedFinish.objects.create(
        job_id=engine.claim(["mail"])[0].id, operation="ack", worker_id="web-4", state="active"
    )
    for who, verb, why in (
        (replace(OPS, name="ben"), "pause_queue", "Its database is full"),
        (OPS, "resume_queue", "There is room again"),
        (of_shell(), "maintenance", ""),
    ):
        record_action(who, verb, kind="queue", count=1, selection={"ids": ["mail"]}, reason=why)


def configure() -> None:
    """A row of everything that people make by hand, but for jobs."""
    _schedules()
    _alerts()
    _webhooks()
    engine.register_specs({"email.send": "v2", "image.resize": "v7"})
    schemas.register("email.send", "1.0.0", {"type": "array", "minItems": 1})
    schemas.register("email.send", "2.0.0", {"type": "array", "minItems": 2, "maxItems": 2})
    schemas.set_mode("strict", type="email.send", queue="reports")
    engine.tenants.configure("acme", {"max_queue_depth": 50_000, "fairness_weight": 5})
    pool = {"queues": ["reports", "mail"], "strategy": "weighted", "weights": {"mail": 3}}
    engine.pools.configure("night", read_pool(pool, "night"))
    engine.bulk_operations.start("retry", {"queue": "no such"}, actor=OPS, reason="Bad release")
    marks.add(OPS, "deployment", "shop/4.2")
    for name, scopes in (("ci", ["produce"]), ("shop workers", ["work"]), ("grafana", ["observe"])):
        make_key(name, scopes=scopes)


def _webhooks() -> None:
    """A subscription with deliveries in each state, one that is paused, and one that is failing."""
    busy = subscriptions.create(
        OPS,
        {
            # Nothing is sent there, whatever button is pressed.
            "url": "https://10.20.0.5/T0/B0",
            "events": ["job.*"],
            "queues": ["mail"],
            "metadata": {"owner": "platform-team"},
        },
    )
    subscriptions.rotate(OPS, busy)
    for url, columns in (
        ("https://10.20.0.6/", {"active": False}),
        ("https://10.20.0.7/", {"failing_since": ago(600), "delivered_at": ago(900)}),
    ):
        subscriptions.create(OPS, {"url": url, "events": ["*"]} | columns)
    failed = {"at": "2026-02-15T22:00:01.000Z", "duration_ms": 30_000, "error": "timed out"}
    for state in DeliveryState:
        WebhookDelivery.objects.create(
            subscription=busy,
            event_id="evt_000000000000-00000000002a",
            event_type="job.completed",
            subject="019539a4-b68c-7def-8000-1a2b3c4d5e6f",
            body='{"type":"job.completed"}',
            state=state,
            created_at=ago(300),
            next_try_at=ahead(300),
            tries=1,
            attempts=[failed],
            finished_at=None if state == DeliveryState.PENDING else ago(60),
        )


def _alerts() -> None:
    """A rule with an open alert that not everybody heard of, and one that is disabled."""
    rule = AlertRule.objects.create(
        name="No worker",
        kind="unserved_queues",
        limits={"seconds": 0},
        queue="search",
        emails="ops@example.com\nnight@example.com",
        webhook_url="https://hooks.example.com/T0/B0",
        webhook_secret="x",
        quiet_from=time(22),
        quiet_until=time(7),
        timezone="Europe/Berlin",
        is_critical=True,
    )
    AlertRule.objects.create(
        name="Too slow", kind="long_waits", enabled=False, job_type="alert.raised"
    )
    kinds = ("silent_workers", "error_rate", "growing_dead_letter")
    for number, kind in enumerate(kinds):
        AlertRule.objects.create(name=f"What else {number}", kind=kind)
    evaluation.evaluate()
    failed = AlertNotification.objects.filter(rule=rule, channel="webhook")
    failed.update(tries=3, last_error="HTTP 503: Service Unavailable", next_try_at=ahead(600))
    delivered = AlertNotification.objects.filter(rule=rule, channel="email")
    delivered.update(tries=1, sent_at=ago(60))
    Alert.objects.create(
        rule=rule,
        kind=rule.kind,
        subject="mail",
        text="Jobs wait in “mail”, and no live worker serves it.",
        link={"model": "ojs_jobs.queue", "key": "mail"},
        since=ago(9000),
        seen_at=ago(5000),
        began_at=ago(9000),
        ended_at=ago(5000),
        announced="end",
    )


def give_orders() -> int:
    """Quiet three workers, of which two report it; return the action in the audit."""
    named = Worker.objects.filter(pk__in=["web-10", "web-11", "web-12"])
    given = fleet.order(named, WorkerState.QUIET, actor=OPS, reason="New disks")
    Worker.objects.filter(pk__in=["web-10", "web-11"]).update(
        state="quiet", last_heartbeat_at=timezone.now()
    )
    Worker.objects.filter(pk="web-12").update(last_heartbeat_at=ago(15))
    assert given.action_id is not None
    return given.action_id


def _schedules() -> None:
    for name, expression, kind in (
        ("daily-report", "0 9 * * *", "report.build"),
        ("reindex", "*/15 * * * *", "search.index"),
        ("cleanup", "30 3 * * 0", "email.send"),
    ):
        template = {"type": kind, "args": [1], "options": {"queue": "reports"}}
        engine.upsert_cron(engine.NewCronJob(name, expression, template, timezone="Europe/Berlin"))
    engine.run_cron_now("daily-report")
    engine.run_cron_now("daily-report")
    engine.set_cron_enabled("cleanup", enabled=False)
