"""ASGI application, which `manage.py runhttp` or any ASGI server serves."""

import gc
import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")

project = get_wsgi_application()

# These imports read the settings.
from workers.asgi import JobServer, sockets_of  # noqa: E402

from .bypass import Bypass  # noqa: E402
from .checks import hold_to_checks  # noqa: E402
from .loading import load  # noqa: E402
from .middleware import PROTOCOLS  # noqa: E402

hold_to_checks()
load()

application = JobServer(
    Bypass(project),
    is_ours=lambda path: path.startswith(PROTOCOLS),
    sockets=sockets_of(),
)

# Imported objects stay: the garbage collector need not scan them again and again.
gc.collect()
gc.freeze()
