"""The WSGI application, for example `granian --interface wsgi ojs_project.wsgi:application`."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")

application = get_wsgi_application()
