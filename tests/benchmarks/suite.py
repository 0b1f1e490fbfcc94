"""All benchmarks on one database, in a process for which Django is set up; see `__main__`."""

from __future__ import annotations

import json
import sys

import django

from .plan import Plan, stop_when_asked


def main() -> None:
    """Read a plan from standard input, measure, write the results to standard output."""
    stop_when_asked()
    plan = Plan(**json.load(sys.stdin))
    for name in ("processes", "only", "sizes", "in_flight"):
        setattr(plan, name, tuple(getattr(plan, name)))
    django.setup()

    from django.core.management import call_command

    from jobs.http.authentication import make_key

    from . import in_process, over_http, scale
    from .results import Results

    call_command("migrate", verbosity=0)
    _, key = make_key("benchmarks")
    results = Results()
    over_http.run(plan, results, key)
    over_http.beside_wsgi(plan, results, key)
    in_process.run(plan, results)
    in_process.recovery(plan, results)
    scale.run(plan, results)
    json.dump(results.documents(), sys.stdout)


if __name__ == "__main__":
    main()
