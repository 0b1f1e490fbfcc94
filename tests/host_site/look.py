"""Checks the results, and every page of ours in the site's own admin."""

import json

import django

django.setup()

from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from shop.jobs.models import Job as Vacancy

from jobs.models import Job

pages = {}
client = Client()
client.force_login(User.objects.create_superuser("boss"))
for model, model_admin in admin.site._registry.items():
    if model._meta.app_label in ("ojs_jobs", "ojs_workers", "jobs"):
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        urls = [reverse(f"admin:{name}_changelist")]
        found = model._default_manager.first()
        # The dashboard has no object pages.
        known = {pattern.name for pattern in model_admin.get_urls()}
        if found is not None and f"{name}_change" in known:
            urls.append(reverse(f"admin:{name}_change", args=[admin.utils.quote(found.pk)]))
        for url in urls:
            reply = client.get(url)
            header = b"Back office of the shop" in reply.content
            pages[url] = [reply.status_code, header]
pages["/back-office/"] = [client.get("/back-office/").status_code, True]
print(
    json.dumps(
        {
            "hired": sorted(Vacancy.objects.values_list("title", "filled_by")),
            "jobs": sorted(map(list, Job.objects.values_list("state", "result"))),
            "pages": pages,
        }
    )
)
