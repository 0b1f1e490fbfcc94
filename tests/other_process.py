"""A site with an admin of its own beside Django's, under a prefix: for `ROOT_URLCONF`."""

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.urls import include, path

control = AdminSite(name="control")
for model, model_admin in admin.site._registry.items():
    if model._meta.app_label in ("ojs_jobs", "ojs_workers", "auth"):
        control.register(model, type(model_admin))

urlpatterns = [
    path("admin/", admin.site.urls),
    path("shop/control/", control.urls),
    path("shop/queue/", include("workers.urls")),
]
