"""The page of a job names what enqueued it and what it enqueued."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse
from django.utils.html import strip_tags

from jobs.admin import lineage
from jobs.models import Job
from jobs.spec.identifiers import uuid7
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db


def section(client, job):
    page = client.get(reverse("admin:ojs_jobs_job_change", args=[job.pk])).content.decode()
    found = re.search(r'<section class="module" id="lineage".*?</section>', page, re.S)
    return found and found[0]


def child_of(parent, root=None, **fields):
    return JobFactory(
        attributes={"parent_id": str(parent), "root_id": str(root or parent)}, **fields
    )


def test_the_line_can_be_followed_in_both_directions(admin_client):
    root = JobFactory(type="order.confirm")
    child = child_of(root.pk, type="email.send")
    grandchild = child_of(child.pk, root.pk, type="email.log", completed=True)

    above, below = section(admin_client, grandchild), section(admin_client, child)

    for job in (child, root):
        assert str(job.pk) in above
    assert "order.confirm" in above
    assert str(grandchild.pk) in below
    assert "completed" in strip_tags(below)
    assert "email.log" in below


def test_a_job_on_its_own_has_no_such_section(admin_client):
    assert section(admin_client, JobFactory()) is None


def test_a_parent_that_is_gone_is_named_as_deleted(admin_client):
    gone = uuid7()

    found = section(admin_client, child_of(gone))

    assert str(gone) in found
    assert "deleted" in found
    assert reverse("admin:ojs_jobs_job_change", args=[gone]) not in found


def test_of_many_children_the_first_are_named(admin_client, monkeypatch):
    monkeypatch.setattr(lineage, "SHOWN", 2)
    parent = JobFactory()
    for _ in range(3):
        child_of(parent.pk)

    found = section(admin_client, parent)

    first, second, third = Job.objects.exclude(pk=parent.pk).order_by("pk")
    assert str(first.pk) in found
    assert str(second.pk) in found
    assert str(third.pk) not in found
    assert "and more" in found
