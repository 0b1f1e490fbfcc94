"""Workers and how they communicate: the OJS worker protocol (Layer 3) as a Django app."""

from __future__ import annotations

import jobs

# A site's own package with that name comes first on Python's path. Without this check, the first
# import of a missing part would fail without giving the reason.
if not hasattr(jobs, "OPEN_JOB_SPEC"):
    from django.core.exceptions import ImproperlyConfigured

    place = getattr(jobs, "__file__", None) or next(iter(jobs.__path__))
    raise ImproperlyConfigured(
        "The app 'workers' is that of Open Job Spec, and needs its app 'jobs'; but Python finds "
        f"another package of that name, at {place}: move that "
        "one into a package of your own, such as 'mysite.jobs', and keep its label (label = 'jobs' "
        "in its AppConfig), so that its tables and migrations stay what they are."
    )
