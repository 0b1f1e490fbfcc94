"""Stand-alone project with that handler."""

from ojs_project.settings import *  # noqa: F403 (a settings module is made of another one)
from ojs_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks.peers.ours"]
