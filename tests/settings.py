"""Settings of the test suite.

OJS_TEST_DATABASE chooses the database: `sqlite` (the default), `postgres` or `router`, which puts
jobs and workers into a second PostgreSQL database. The latter two use DATABASE_URL if that names a
PostgreSQL server, and otherwise start one.
"""

import os
from pathlib import Path
from typing import Any

import dj_database_url

from . import postgres, routers

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "for-tests-only"
# The codec server's.
os.environ.setdefault("CODEC_KEYS", f"tests={'a' * 43}=")
DEBUG = False
ALLOWED_HOSTS = ["*"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_q",
    "jobs",
    "workers",
    "ojs_project",
]

MIDDLEWARE = [
    "ojs_project.middleware.PolicyMiddleware",
    "ojs_project.middleware.HostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "ojs_project.middleware.ProtocolMiddleware",
    "ojs_project.unavailable.UnavailableMiddleware",
    "ojs_project.middleware.CompressionMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "ojs_project.zones.ZoneMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "ojs_project.urls"

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

# Fast, and nothing else: the tests' passwords protect nothing.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

_url = os.environ.get("DATABASE_URL", "")


def _sqlite() -> dict[str, Any]:
    given = _url.startswith("sqlite:")
    return {
        "ENGINE": "django.db.backends.sqlite3",
        # The tests use a file, which `conftest` names.
        "NAME": dj_database_url.parse(_url)["NAME"] if given else ":memory:",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def _postgres() -> dict[str, Any]:
    # Processes that a test starts inherit the server. Each worker of pytest-xdist has its own: an
    # open transaction in one database of a server would delay what another considers settled.
    me = os.environ.get("PYTEST_XDIST_WORKER", "")
    if os.environ.get("OJS_TEST_DATABASE_OF") != me:
        given = _url.startswith(("postgres:", "postgresql:"))
        os.environ["OJS_TEST_DATABASE_URL"] = _url if given else postgres.start(durable=False)
        os.environ["OJS_TEST_DATABASE_OF"] = me
    return {**dj_database_url.parse(os.environ["OJS_TEST_DATABASE_URL"])}


_databases = {"sqlite": _sqlite, "postgres": _postgres, "router": _postgres}
_choice = os.environ.get("OJS_TEST_DATABASE", "sqlite")
if _choice not in _databases:
    raise ValueError(f"OJS_TEST_DATABASE must be one of {', '.join(_databases)}, not {_choice!r}.")

DATABASES = {"default": _databases[_choice]()}
if _choice == "router":
    DATABASE_ROUTERS = [routers.PATH]
    if routers.OTHER in os.environ:
        routers.take_apart(DATABASES)
    else:
        # The tests create a database for each: `test_` and its name.
        apart = {"NAME": "ojs_apart", "TEST": {"DEPENDENCIES": []}}
        DATABASES[routers.ALIAS] = DATABASES["default"] | apart
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGES = [("en", "English"), ("de", "Deutsch"), ("es", "Español")]

STATIC_URL = "static/"

Q_CLUSTER = {"name": "tests", "orm": "default", "workers": 1, "timeout": 30, "retry": 60}

# Additions of `ojs_project.settings` to Django's own.
PROXIES = 0

OJS: dict[str, Any] = {}
