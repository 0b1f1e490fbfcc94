"""Stand-alone project with jobs and workers in a database of their own."""

from ojs_project.settings import *  # noqa: F403 (a settings module is made of another one)
from ojs_project.settings import DATABASES

from . import routers

routers.take_apart(DATABASES)
DATABASE_ROUTERS = [routers.PATH]
