from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from jobs.http.base import not_found
from workers.bindings.ojs.observing import MetricsViewSet, ReadinessViewSet
from workers.bindings.ojs.views import HealthViewSet

from .start import dress, favicon, start

handler403 = "ojs_project.refused.permission_denied"
handler500 = "ojs_project.unavailable.server_error"

dress(admin.site)

urlpatterns = [
    # First, because thousands of requests a second come here, and few to the admin.
    path("", include("workers.urls")),
    # Where Flare is off. In a host site, the path is the site's own.
    re_path(r"^flare/v1(?:/|\Z)", not_found),
    path("admin/", start),
    path("admin/", admin.site.urls),
    path("favicon.ico", favicon),
    # The default paths of balancers and scrapers. A host site has its own.
    path("health", HealthViewSet.as_view({"get": "retrieve"})),
    path("ready", ReadinessViewSet.as_view({"get": "retrieve"})),
    path("metrics", MetricsViewSet.as_view({"get": "retrieve"})),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
