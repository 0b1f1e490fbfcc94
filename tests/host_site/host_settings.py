"""A site unrelated to this repository, with its own names for everything."""

import json
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECRET_KEY = "for-tests-only"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
INSTALLED_APPS = [
    "shop.admin_site.ShopAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "shop.jobs",
    "shop.workers",
    "rest_framework",
    "jobs",
    "workers",
]
MIDDLEWARE = [
    "shop.middleware.sign",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "host_urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
}
DATABASES = {
    "default": SQLITE | {"NAME": HERE / "shop.sqlite3"},
    "queue": SQLITE | {"NAME": HERE / "queue.sqlite3"},
}
if "SHOP_DATABASES" in os.environ:
    DATABASES = json.loads(os.environ["SHOP_DATABASES"])
DATABASE_ROUTERS = ["shop.routers.QueueRouter"]
OJS = json.loads(os.environ.get("SHOP_OJS", "{}"))
STATIC_URL = "static/"
USE_TZ = True
# Settings for the site's own API; ours must neither use nor need them.
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FormParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.StaticHTMLRenderer"],
    "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.AnonRateThrottle"],
    "DEFAULT_THROTTLE_RATES": {"anon": "1/day"},
    "EXCEPTION_HANDLER": "shop.missing.handler",
}
