from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from workers.bindings.ojs.observing import MetricsViewSet, ReadinessViewSet
from workers.bindings.ojs.views import HealthViewSet

handler500 = "ojs_project.unavailable.server_error"

# Django's own index page, and above it what an operator must know.
admin.site.index_template = "admin/ojs/index.html"

urlpatterns = [
    # Thousands of requests a second come here, a few to the admin.
    path("", include("workers.urls")),
    path("admin/", admin.site.urls),
    # Where balancers and scrapers look by habit. A host site has its own there.
    path("health", HealthViewSet.as_view({"get": "retrieve"})),
    path("ready", ReadinessViewSet.as_view({"get": "retrieve"})),
    path("metrics", MetricsViewSet.as_view({"get": "retrieve"})),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
