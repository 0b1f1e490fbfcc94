"""The stand-alone project with the shop in it, for worker processes of the tests."""

from ojs_project.settings import *  # noqa: F403 (a settings module is made of another one)
from ojs_project.settings import INSTALLED_APPS

from . import TASKS as TASKS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.shop"]
