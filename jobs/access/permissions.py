"""Permissions in the admin: three groups over one permission for each verb.

Each permission is declared in the `Meta` of the model it applies to. A group gets those that
exist, so an app that is not installed leaves no gap.
"""

from __future__ import annotations

from typing import Any

APPS = ("ojs_jobs", "ojs_workers")

OPERATES = frozenset(
    {
        "quiet_worker",
        "resume_worker",
        "terminate_worker",
        "unflag_worker",
        "drain_fleet",
        "cancel_job",
        "cancel_workflow",
        "retry_job",
        "discard_job",
        "run_job",
        "run_bulkoperation",
        "enqueue_job",
        "operate_cron",
        "add_cronjob",
        "change_cronjob",
        "delete_cronjob",
        "register_spec",
        "manage_schema",
        "manage_tenant",
        "manage_pool",
        "pause_queue",
        "change_ratelimit",
        "maintenance",
        "add_mark",
        "acknowledge_alert",
    }
)
"""What an operator may do beyond viewing: nothing that deletes a queue or shows a secret."""
SECRET = frozenset({"view_job_args"})
"""Named "view", but not for every viewer: arguments may hold what only few should read."""
GROUPS = ("OJS viewer", "OJS operator", "OJS admin")


def permissions_of(group: str) -> list[Any]:
    """The permissions that belong to one of `GROUPS`."""
    from django.contrib.auth.models import Permission

    ours = Permission.objects.filter(content_type__app_label__in=APPS)
    return [permission for permission in ours if _belongs(permission.codename, group)]


def _belongs(codename: str, group: str) -> bool:
    if group == "OJS admin":
        return True
    if group == "OJS operator" and codename in OPERATES:
        return True
    return codename.startswith("view_") and codename not in SECRET


def create_groups() -> dict[str, int]:
    """Create the groups or bring them up to date; return how many permissions each was given.

    Permissions that a site added are kept.
    """
    from django.contrib.auth.models import Group

    given = {}
    for name in GROUPS:
        group, _ = Group.objects.get_or_create(name=name)
        known = set(group.permissions.values_list("pk", flat=True))
        missing = [found for found in permissions_of(name) if found.pk not in known]
        group.permissions.add(*missing)
        given[name] = len(missing)
    return given
