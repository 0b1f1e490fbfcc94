"""Who may do what in the admin: three groups over one permission for each verb.

The permissions themselves stand in the `Meta` of the model they are about. A group gets those
that exist, so that an app which is not installed is not missed.
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
        "enqueue_job",
        "operate_cron",
        "register_spec",
        "pause_queue",
        "maintenance",
    }
)
"""What an operator does beyond looking: nothing that deletes a queue or shows a secret."""
SECRET = frozenset({"view_job_args"})
"""Called "view", and yet not for every viewer: arguments may hold what only few should read."""
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
    """Make the groups, or bring them up to date; return how many permissions each was given.

    What a site added to them stays.
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
