"""Writes the site of a condition into a folder."""

from __future__ import annotations

from pathlib import Path

from .conditions import Condition

SETTINGS = """
import json
import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SECRET_KEY = "for-tests-only"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "jobs",
    "workers",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "site_urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        # Those of a checkout; the wheel has them inside an app.
        "DIRS": [path for path in [os.environ.get("SITE_TEMPLATES")] if path],
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
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 60},
}
DATABASES = {
    name: SQLITE | {"NAME": FOLDER / f"{name}.sqlite3"} for name in %(databases)r
}
DATABASES |= json.loads(os.environ.get("SITE_DATABASES", "{}"))
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
STATIC_ROOT = FOLDER / "static"
USE_TZ = True
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django": {"handlers": ["console"], "level": "ERROR"}},
}
ADMIN_PATH = "admin/"
OJS = {"HEARTBEAT_INTERVAL": 0.2, "HEARTBEAT_TIMEOUT": 60}
"""

URLS = """
from django.conf import settings
from django.contrib import admin
from django.urls import include, path

from shop.views import orders

urlpatterns = [
    path(settings.ADMIN_PATH, admin.site.urls),
    path("orders", orders),
    path("", include("workers.urls")),
]
"""

SERVERS = """
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

wsgi = get_wsgi_application()
asgi = get_asgi_application()

from workers.asgi import JobServer

front_door = JobServer.around(asgi)
"""

MODELS = """
from django.conf import settings
from django.db import models


class Order(models.Model):
    customer = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT)
    times_shipped = models.IntegerField(default=0)
"""

PEOPLE = """
from uuid import uuid4

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models


class People(BaseUserManager):
    def create_superuser(self, email, password):
        person = self.model(email=email, is_staff=True, is_superuser=True)
        person.set_password(password)
        person.save(using=self._db)
        return person


class Person(AbstractBaseUser, PermissionsMixin):
    id = models.UUIDField(primary_key=True, default=uuid4)
    email = models.EmailField(unique=True)
    is_staff = models.BooleanField(default=False)
    is_active = models.BooleanField(default=True)

    USERNAME_FIELD = "email"
    objects = People()
"""

VIEWS = """
from contextlib import ExitStack, nullcontext

from django.contrib.auth import get_user_model
from django.db import connections, router, transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt

import jobs
from jobs.models import Job

from .models import Order


class Declined(Exception):
    pass


def in_transaction(alias):
    if connections[alias].settings_dict["ATOMIC_REQUESTS"]:
        return nullcontext()
    return transaction.atomic(using=alias)


@csrf_exempt
def orders(request):
    if request.method == "POST":
        with ExitStack() as stack:
            for alias in {router.db_for_write(Order), router.db_for_write(Job)}:
                stack.enter_context(in_transaction(alias))
            order = Order.objects.create(customer=get_user_model().objects.get())
            jobs.enqueue("shop.ship", [order.pk])
            if request.POST.get("declined"):
                raise Declined
    return JsonResponse(
        {
            "shipped": list(Order.objects.order_by("pk").values_list("times_shipped", flat=True)),
            "jobs": [[str(job.id), job.state] for job in reversed(jobs.find(type="shop.ship"))],
        }
    )


def show_toolbar(request):
    return True
"""

HANDLERS = """
from django.db.models import F

from workers.runtime import handler

from .models import Order


@handler("shop.ship")
def ship(context, order):
    return Order.objects.filter(pk=order).update(times_shipped=F("times_shipped") + 1)
"""

ADMIN_SITE = """
from django.contrib import admin
from django.contrib.admin.apps import AdminConfig


class ShopAdminSite(admin.AdminSite):
    site_header = "Back office of the shop"


class ShopAdminConfig(AdminConfig):
    default_site = "shop.admin_site.ShopAdminSite"
"""

ROUTERS = """
OURS = ("ojs_jobs", "ojs_workers")


class JobsApart:
    def db_for_read(self, model, **hints):
        return "queue" if model._meta.app_label in OURS else "default"

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        return (db == "queue") == (app_label in OURS)
"""

PREPARE = """
import secrets

import django

django.setup()

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command

own = [name for name in ("people", "shop") if apps.is_installed(name)]
call_command("makemigrations", *own, verbosity=0)
for database in settings.DATABASES:
    call_command("migrate", database=database, verbosity=0)
call_command("makemigrations", "ojs_jobs", "ojs_workers", check_changes=True, dry_run=True)
call_command("check", databases=list(settings.DATABASES), fail_level="WARNING")
User = get_user_model()
User.objects.create_superuser(**{User.USERNAME_FIELD: "boss@example.com", "password": "boss"})
call_command("createapikey", name="worker", scopes="work")
"""

FILES = {
    "site_settings.py": SETTINGS,
    "site_urls.py": URLS,
    "servers.py": SERVERS,
    "prepare.py": PREPARE,
    "people/__init__.py": "",
    "people/models.py": PEOPLE,
    "people/migrations/__init__.py": "",
    "shop/__init__.py": "",
    "shop/models.py": MODELS,
    "shop/migrations/__init__.py": "",
    "shop/views.py": VIEWS,
    "shop/handlers.py": HANDLERS,
    "shop/admin_site.py": ADMIN_SITE,
    "shop/routers.py": ROUTERS,
}


def write(folder: Path, condition: Condition) -> None:
    added = {"site_settings.py": condition.settings, "site_urls.py": condition.urls}
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name == "site_settings.py":
            text = text % {"databases": condition.databases}
        file.write_text(text.lstrip() + added.get(name, ""))
