"""All HTTP bindings: the one line a host site includes."""

from django.urls import re_path

from jobs.api import urls as producers
from jobs.http.base import not_found

from .api import urls as operators
from .bindings.flare import urls as flare
from .bindings.ojs import urls as ojs

app_name = "ojs"

# Workers first: `jobs/fetch` must not be taken for a job called "fetch". One flat list: each
# level of includes costs every request as much as a database index look-up.
urlpatterns = [
    *ojs.urlpatterns,
    *producers.urlpatterns,
    *operators.urlpatterns,
    re_path(r"^ojs(?:/|\Z)", not_found),
    *flare.urlpatterns,
]
