"""The stand-alone project's settings, with the floor as its only URL."""

from ojs_project.settings import *  # noqa: F403 - all of them

ROOT_URLCONF = "tests.benchmarks.floor"
