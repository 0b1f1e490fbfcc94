#!/usr/bin/env python3
"""Django's command line for the stand-alone project."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")
    if sys.argv[1:2] == ["quickstart"]:
        # Quickstart requires no decisions. Other commands require DJANGO_SECRET_KEY, unless they
        # run beside a quickstart.
        from ojs_project import quickstart_environment

        try:
            quickstart_environment.prepare(sys.argv[2:], os.environ)
        except quickstart_environment.Unusable as problem:
            sys.exit(str(problem))
    else:
        from ojs_project import beside

        beside.join(os.environ)
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as problem:
        if "--traceback" in sys.argv:
            raise
        # The message is the problem, not the forty lines of Django's traceback around it.
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
