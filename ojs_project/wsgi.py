"""WSGI application, for example `granian --interface wsgi ojs_project.wsgi:application`."""

import gc
import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")

project = get_wsgi_application()

# These imports read the settings.
from .body_deadline import BodyDeadline  # noqa: E402
from .bypass import Bypass  # noqa: E402
from .checks import hold_to_checks  # noqa: E402
from .ending import watch_for_the_end  # noqa: E402
from .loading import load  # noqa: E402

hold_to_checks()
load()

application = BodyDeadline(Bypass(project))
watch_for_the_end()

# Imported objects stay: the garbage collector need not scan them again and again.
gc.collect()
gc.freeze()
