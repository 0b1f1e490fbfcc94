"""The stand-alone project, in its production configuration, with one kind of job."""

import os

from ojs_project.settings import *  # noqa: F403 (a settings module is made of another one)
from ojs_project.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "campaign_site"]
if "CAMPAIGN_POOLED" in os.environ:
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
