"""The conditions in which the site is tried: what each changes in it, and what its pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Condition:
    name: str
    settings: str = ""
    """Python at the end of the settings."""
    urls: str = ""
    """Python at the end of the URLs."""
    server: str = "wsgi"
    """`wsgi`, `asgi` (Django's handler) or `front door` (`JobServer` around it)."""
    admin: str = "/admin/"
    databases: tuple[str, ...] = ("default",)
    packages: tuple[str, ...] = ()
    """What it needs that the tests do not bring."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """Further pages, and a text on each. `{dashboard}` is the dashboard."""
    is_looked_at: bool = False
    """Whether a browser looks at the admin's pages, in light and dark."""


ROUTER = """
DATABASE_ROUTERS = ["shop.routers.JobsApart"]
"""

ATOMIC_REQUESTS = """
for database in DATABASES.values():
    database["ATOMIC_REQUESTS"] = True
"""

CUSTOM_USER = """
INSTALLED_APPS.insert(0, "people")
AUTH_USER_MODEL = "people.Person"
"""

ADMIN_SITE = """
INSTALLED_APPS[INSTALLED_APPS.index("django.contrib.admin")] = "shop.admin_site.ShopAdminConfig"
ADMIN_PATH = "back-office/"
"""

DEBUG_TOOLBAR = """
DEBUG = True
INSTALLED_APPS.append("debug_toolbar")
MIDDLEWARE.insert(0, "debug_toolbar.middleware.DebugToolbarMiddleware")
DEBUG_TOOLBAR_CONFIG = {"SHOW_TOOLBAR_CALLBACK": "shop.views.show_toolbar"}
"""
DEBUG_TOOLBAR_URLS = """
from debug_toolbar.toolbar import debug_toolbar_urls

urlpatterns += debug_toolbar_urls()
"""

SILK = """
INSTALLED_APPS.append("silk")
MIDDLEWARE.insert(0, "silk.middleware.SilkyMiddleware")
"""
SILK_URLS = """
urlpatterns.append(path("silk/", include("silk.urls", namespace="silk")))
"""

UNFOLD = """
INSTALLED_APPS.insert(0, "unfold")
"""
UNFOLD_URLS = """
from django.contrib.staticfiles.views import serve

urlpatterns.append(path("static/<path:path>", serve, {"insecure": True}))
"""
"""For those who look at it."""

SHOP_HEADER = {"{dashboard}": "Back office of the shop"}

PLAIN = Condition("plain")
TOGETHER = Condition(
    "together",
    settings=ROUTER + ATOMIC_REQUESTS + CUSTOM_USER + ADMIN_SITE,
    server="front door",
    admin="/back-office/",
    databases=("default", "queue"),
    pages=SHOP_HEADER,
)
"""All that need no further package."""

CONDITIONS = (
    PLAIN,
    Condition("asgi", server="asgi"),
    Condition("front-door", server="front door"),
    Condition("router", settings=ROUTER, databases=("default", "queue")),
    Condition("atomic-requests", settings=ATOMIC_REQUESTS),
    Condition("custom-user", settings=CUSTOM_USER),
    Condition("admin-site", settings=ADMIN_SITE, admin="/back-office/", pages=SHOP_HEADER),
    TOGETHER,
    Condition(
        "debug-toolbar",
        settings=DEBUG_TOOLBAR,
        urls=DEBUG_TOOLBAR_URLS,
        packages=("django-debug-toolbar",),
        pages={"{dashboard}": "djDebug"},
    ),
    Condition(
        "silk",
        settings=SILK,
        urls=SILK_URLS,
        packages=("django-silk",),
        pages={"/silk/requests/": "/ojs/v1/workers/fetch"},
    ),
    Condition(
        "unfold",
        settings=UNFOLD,
        urls=UNFOLD_URLS,
        packages=("django-unfold",),
        pages={"{dashboard}": "unfold/css/styles"},
        is_looked_at=True,
    ),
    Condition(
        "all-packages",
        settings=TOGETHER.settings + UNFOLD + SILK + DEBUG_TOOLBAR,
        urls=SILK_URLS + DEBUG_TOOLBAR_URLS,
        server="front door",
        admin="/back-office/",
        databases=("default", "queue"),
        packages=("django-debug-toolbar", "django-silk", "django-unfold"),
        pages={"{dashboard}": "djDebug", "/silk/requests/": "/ojs/v1/workers/fetch"},
    ),
)
