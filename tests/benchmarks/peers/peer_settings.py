"""A Django site for the peers that are Django apps."""

import os
from urllib.parse import parse_qs, unquote, urlsplit

url = urlsplit(os.environ["PEER_DATABASE"])
SECRET_KEY = "for-benchmarks-only"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q", "django_tasks", "django_tasks_db"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path[1:],
        "USER": url.username or "",
        "PASSWORD": unquote(url.password or ""),
        "HOST": unquote(url.hostname or parse_qs(url.query).get("host", [""])[0]),
        "PORT": url.port or "",
        "CONN_MAX_AGE": None,
    }
}
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
# Tuned: results of no-op jobs are not kept, and a worker takes many at once.
Q_CLUSTER = {
    "name": "peer",
    "orm": "default",
    "workers": int(os.environ.get("PEER_PROCESSES", "1")),
    "bulk": 100,
    "queue_limit": 500,
    "poll": 0.05,
    "recycle": 1_000_000,
    "save_limit": -1,
    "timeout": 60,
    "retry": 120,
}
LOGGING_CONFIG = None
