"""Slow chores as django-q2 schedules; neither celery beat nor a cluster is required.

`manage.py qcluster` runs them; without a cluster, `manage.py runreaper` does.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps

PREFIX = "Open Job Spec: "
FUNCTION = "workers.chores.housekeeping.do"
APP = "ojs_workers"


def install_schedules(**kwargs: Any) -> None:
    """Create missing schedules after `migrate`; an operator's changes to them are kept.

    After `migrate ojs_workers zero` there is nothing left to keep: the schedules are deleted, so
    that a cluster of a site which removes the apps does not look for them.
    """
    from django.db import connections, router
    from django.db.migrations.recorder import MigrationRecorder
    from django_q.models import Schedule

    from . import reaper

    using = kwargs.get("using", "default")
    database = connections[using]
    if not router.allow_migrate_model(using, Schedule):
        return
    if Schedule._meta.db_table not in database.introspection.table_names():
        return
    schedules = Schedule.objects.using(using)
    # Django records migrations in every database, wherever a router puts the tables.
    if not any(app == APP for app, _ in MigrationRecorder(database).applied_migrations()):
        schedules.filter(name__startswith=PREFIX, func=FUNCTION).delete()
        return
    for chore in reaper.SLOW:
        assert chore.every is not None
        schedules.get_or_create(
            name=PREFIX + chore.name,
            defaults={
                "func": FUNCTION,
                "args": repr((chore.name,)),
                "schedule_type": Schedule.MINUTES,
                "minutes": max(1, int(chore.every.total_seconds() // 60)),
                "repeats": -1,
            },
        )


def do(name: str) -> int:
    """Do one slow chore if it is due; return how many rows it touched.

    Nothing is left to do for a task that is still queued on a site which has removed the apps.
    """
    if not apps.is_installed("workers"):
        return 0
    # Late: the models cannot be imported there, and a cluster's process would end with the import.
    from . import reaper

    chore = next(chore for chore in reaper.SLOW if chore.name == name)
    # The scheduler is never quite on time. If a whole period were required, every run that comes a
    # moment early would be skipped, and a reaper would step in.
    return reaper.run(chore) if reaper.take_turn(chore, patience=0.5) else 0
