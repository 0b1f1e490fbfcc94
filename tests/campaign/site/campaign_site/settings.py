"""Stand-alone project, in its production configuration, with one kind of job."""

from ojs_project.settings import *  # noqa: F403 (a settings module is made of another one)
from ojs_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "campaign_site"]
