"""All HTTP bindings: the one line a host site includes."""

from django.urls import include, path, re_path

from jobs.api.base import not_found

app_name = "ojs"

urlpatterns = [
    # First: `jobs/fetch` must not be taken for a job called "fetch".
    path("", include("workers.bindings.ojs.urls")),
    path("", include("jobs.api.urls")),
    re_path(r"^ojs(?:/.*)?$", not_found),
]
