"""Settings of the stand-alone project, read from environment variables.

To try it out, `DJANGO_DEBUG=1` is enough. In production, set at least these:

    DJANGO_SECRET_KEY                       a long random text
    DJANGO_ALLOWED_HOSTS                    jobs.example.com,jobs.internal
    DATABASE_URL                            postgresql://user:password@host:5432/name, or several:
                                            …@host1:5432,host2:5432/name?target_session_attrs=read-write
                                            (else SQLite in DJANGO_DATA_DIR, or data/)
    READ_DATABASE_URL                       of a standby, for pages and figures (optional)
    DJANGO_SECURE_SSL_REDIRECT=1            also restricts cookies to HTTPS
    DJANGO_SECURE_PROXY_SSL_HEADER=1        behind a proxy that sets X-Forwarded-Proto
    DJANGO_CSRF_TRUSTED_ORIGINS             https://jobs.example.com
    DJANGO_SECURE_HSTS_SECONDS=31536000
    DJANGO_SECURE_HSTS_INCLUDE_SUBDOMAINS=1
    DJANGO_SECURE_HSTS_PRELOAD=1

`manage.py check --deploy` is then silent. `OJS_<NAME>` sets the option `OJS["<NAME>"]`.
"""

import os
import re
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

from . import telemetry
from .databases import database
from .environment import (
    choice,
    data_folder,
    flag,
    log_level,
    number,
    ojs_options,
    secret,
    words,
)
from .health import PROBES

BASE_DIR = Path(__file__).resolve().parent.parent

# Security

DEBUG = flag(os.environ, "DJANGO_DEBUG")

SECRET_KEY = secret(os.environ, "DJANGO_SECRET_KEY")
if not SECRET_KEY:
    if not DEBUG:
        raise ImproperlyConfigured(
            "Set DJANGO_SECRET_KEY to a long random text, or DJANGO_DEBUG=1 for development."
        )
    # The same in every process, so that sessions outlive a restart and are shared by workers.
    SECRET_KEY = "django-insecure-for-development-only"

# In DEBUG an empty list means this machine only.
ALLOWED_HOSTS = words(os.environ, "DJANGO_ALLOWED_HOSTS")
CSRF_TRUSTED_ORIGINS = words(os.environ, "DJANGO_CSRF_TRUSTED_ORIGINS")

SECURE_SSL_REDIRECT = flag(os.environ, "DJANGO_SECURE_SSL_REDIRECT")
# Patterns of paths that stay on plain HTTP: those of probes, and the site's own.
SECURE_REDIRECT_EXEMPT = [
    *(rf"^{re.escape(path.lstrip('/'))}\Z" for path in PROBES),
    *words(os.environ, "DJANGO_SECURE_REDIRECT_EXEMPT"),
]
SESSION_COOKIE_SECURE = flag(os.environ, "DJANGO_SECURE_COOKIES", default=SECURE_SSL_REDIRECT)
CSRF_COOKIE_SECURE = SESSION_COOKIE_SECURE
CSRF_FAILURE_VIEW = "ojs_project.refused.csrf_failure"
SECURE_HSTS_SECONDS = number(os.environ, "DJANGO_SECURE_HSTS_SECONDS", 0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = flag(os.environ, "DJANGO_SECURE_HSTS_INCLUDE_SUBDOMAINS")
SECURE_HSTS_PRELOAD = flag(os.environ, "DJANGO_SECURE_HSTS_PRELOAD")
# Off by default: without a proxy that overwrites it, any client can send this header.
SECURE_PROXY_SSL_HEADER = (
    ("HTTP_X_FORWARDED_PROTO", "https")
    if flag(os.environ, "DJANGO_SECURE_PROXY_SSL_HEADER")
    else None
)

# Applications

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    # Before staticfiles: `runserver` then serves static files the way production does.
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_q",
    "axes",
    "jobs",
    "workers",
    "ojs_project",
]

# Only what the admin and security require. API requests pass through the first four only.
MIDDLEWARE = [
    "ojs_project.middleware.PolicyMiddleware",
    "ojs_project.middleware.HostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "ojs_project.middleware.ProtocolMiddleware",
    "ojs_project.unavailable.UnavailableMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "ojs_project.middleware.CompressionMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "ojs_project.zones.ZoneMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "ojs_project.urls"
ASGI_APPLICATION = "ojs_project.asgi.application"
WSGI_APPLICATION = "ojs_project.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# Guessed passwords at the admin: after ten attempts, that name is locked for ten minutes from
# that address. The lock takes both, so that operators who share an address do not lock one
# another out, and strangers elsewhere lock no one out. It is kept in the database, which all
# servers share; `manage.py axes_reset` lifts it immediately.

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=10)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_LOCKOUT_TEMPLATE = "admin/ojs/locked_out.html"
AXES_RESET_ON_SUCCESS = True
# Attempts during the lock neither prolong it nor fill the table.
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_CLIENT_IP_CALLABLE = "ojs_project.addresses.client_address"
AXES_USERNAME_CALLABLE = "ojs_project.addresses.client_name"
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
# A user who mistakes one field for the other types a password as the name.
AXES_SENSITIVE_PARAMETERS = ["username"]

# Database


def _sqlite_url() -> str:
    folder = data_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{quote(str(folder / 'ojs.sqlite3'))}"


DATABASES = {
    "default": database(secret(os.environ, "DATABASE_URL") or _sqlite_url(), os.environ),
}
_standby_url = secret(os.environ, "READ_DATABASE_URL")
if _standby_url:
    DATABASES["standby"] = database(_standby_url, os.environ)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Time and language

TIME_ZONE = "UTC"
USE_TZ = True
LANGUAGE_CODE = "en-us"
USE_I18N = True
# The admin's languages, chosen by the browser. Django has more, but our pages do not.
LANGUAGES = [("en", "English"), ("de", "Deutsch"), ("es", "Español")]

# Static files: served directly from the installed packages, so that starting a server needs no
# `collectstatic`. Set DJANGO_STATIC_ROOT to collect them for a web server of your own.

STATIC_URL = "static/"
STATIC_ROOT = os.environ.get("DJANGO_STATIC_ROOT")
WHITENOISE_USE_FINDERS = True

# Logging

LOG_LEVEL = log_level(os.environ, "DJANGO_LOG_LEVEL")
WITHOUT_SECRETS = "INFO" if LOG_LEVEL in ("DEBUG", "NOTSET") else LOG_LEVEL
# `json`: one document for each line, in every process (OJS logging §5).
LOG_FORMAT = choice(os.environ, "DJANGO_LOG_FORMAT", "text", "json")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"},
        "json": {"()": "workers.json_log.JSONFormatter"},
    },
    "filters": {"without_traceback": {"()": "ojs_project.refused.WithoutTraceback"}},
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT},
    },
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    # Django's own handlers would print its messages a second time, and its own level would let
    # every refused request through.
    "loggers": {
        "django": {"handlers": [], "propagate": True, "level": LOG_LEVEL},
        "django.request": {"filters": ["without_traceback"]},
        # At DEBUG, these write down what a page shows once, such as a new key, and the headers of
        # handshakes, which hold keys.
        "django.template": {"level": WITHOUT_SECRETS},
        "uvicorn.error": {"level": WITHOUT_SECRETS},
        # Failed logins are worth a line; each of its lookups is not.
        "axes": {"level": "WARNING"},
    },
}

# Slow housekeeping (`manage.py qcluster`): a few small tasks an hour, brokered by the database.

Q_CLUSTER = {
    "name": "ojs",
    "orm": "default",
    "workers": 1,
    "poll": 2,
    "timeout": 300,
    "retry": 600,
    # A cluster that was down runs each missed schedule once, not once for every missed time.
    "catch_up": False,
    "save_limit": 50,
}

# E-mail: alert notifications

EMAIL_HOST = os.environ.get("DJANGO_EMAIL_HOST", "localhost")
EMAIL_PORT = number(os.environ, "DJANGO_EMAIL_PORT", 25)
EMAIL_HOST_USER = os.environ.get("DJANGO_EMAIL_USER", "")
EMAIL_HOST_PASSWORD = secret(os.environ, "DJANGO_EMAIL_PASSWORD")
EMAIL_USE_TLS = flag(os.environ, "DJANGO_EMAIL_STARTTLS")
EMAIL_USE_SSL = flag(os.environ, "DJANGO_EMAIL_TLS")
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = os.environ.get("DJANGO_EMAIL_FROM", "ojs@localhost")

# The job server

# Django's own settings are DJANGO_…, and how many proxies there are concerns its admin as well.
OJS = (
    {"PROXIES": number(os.environ, "DJANGO_PROXIES", 0)}
    | ({"READ_DATABASE": "standby"} if _standby_url else {})
    | telemetry.options(os.environ)
    | ojs_options(os.environ)
)
