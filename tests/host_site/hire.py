"""Create a vacancy and a job for it, in the site's own code and over HTTP, with its settings."""

import json

import django

django.setup()

from django.db import transaction
from django.test import Client
from shop.jobs.models import Job as Vacancy

import jobs
from jobs.http.authentication import make_key
from jobs.models import Job as QueuedJob

first = Vacancy.objects.create(title="Clerk")
second = Vacancy.objects.create(title="Cook")
with transaction.atomic(using="queue"):
    jobs.enqueue("shop.hire", [first.pk, "Ada"])
try:
    with transaction.atomic(using="queue"):
        jobs.enqueue("shop.hire", [first.pk, "Nobody"])
        raise LookupError
except LookupError:
    pass
assert QueuedJob.objects.using("queue").count() == 1

_, key = make_key("shop")
for _ in range(3):
    reply = Client().post(
        "/ojs/v1/jobs",
        json.dumps({"type": "shop.hire", "args": [second.pk, "Grace"]}),
        content_type="application/openjobspec+json",
        headers={"Authorization": f"Bearer {key}"},
    )
    assert reply.status_code == 201, reply.content
refused = Client().post("/ojs/v1/jobs", "{}", content_type="application/json")
assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthenticated")
