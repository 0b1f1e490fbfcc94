"""Stand-alone project with the shop in it, for worker processes of the tests."""

import os

from ojs_project.settings import *  # noqa: F403 (a settings module is made of another one)
from ojs_project.settings import DATABASES, INSTALLED_APPS

from .. import routers
from . import TASKS as TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.shop"]
if "SHOP_CONN_MAX_AGE" in os.environ:
    DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ["SHOP_CONN_MAX_AGE"])
if routers.OTHER in os.environ:
    routers.take_apart(DATABASES)
    DATABASE_ROUTERS = [routers.PATH]
