#!/usr/bin/env python3
"""Django's command line for the stand-alone project."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")
    if sys.argv[1:2] == ["quickstart"]:
        # A first look needs no decisions; everything else asks for DJANGO_SECRET_KEY.
        from ojs_project import first_look

        try:
            first_look.prepare(sys.argv[2:], os.environ)
        except first_look.Unusable as problem:
            sys.exit(str(problem))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
