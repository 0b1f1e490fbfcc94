from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

# Django's own index page, and above it what an operator must know.
admin.site.index_template = "admin/ojs/index.html"

urlpatterns = [
    # Thousands of requests a second come here, a few to the admin.
    path("", include("workers.urls")),
    path("admin/", admin.site.urls),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
