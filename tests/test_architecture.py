"""Import rules."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import LEFT_OUT, OF_BOTH
from tests.once import once_is_enough

pytestmark = once_is_enough


ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = [
    # `workers` imports `jobs`, never the reverse; neither imports the project.
    ("jobs", ["workers", "ojs_project", "tests"]),
    ("workers", ["ojs_project", "tests"]),
    # The engine knows sets of jobs: no request, no admin, no protocol.
    ("jobs/engine", ["rest_framework", "django.contrib", "django.http", "requests", "http"]),
    ("jobs/engine", ["jobs.api", "jobs.admin"]),
    # The worker protocol has no transport, and housekeeping answers no requests.
    ("workers/protocol", ["rest_framework", "django.http", "workers.bindings"]),
    ("workers/chores/reaper", ["rest_framework", "django.http", "workers.bindings"]),
    # Bindings only translate.
    ("workers/bindings", ["django.db", "jobs.models", "workers.models"]),
]

# Data and pure functions, usable without a database.
PURE = [
    "jobs/errors",
    "jobs/spec/durations",
    "jobs/spec/fields",
    "jobs/spec/identifiers",
    "jobs/spec/lifecycle",
    "jobs/spec/members",
    "jobs/spec/rate_policy",
    "jobs/spec/retry",
    "jobs/spec/timestamps",
    "jobs/spec/unique_policy",
    "jobs/spec/versions",
]
PURE_MAY_IMPORT = {
    *sys.stdlib_module_names,
    "django.db.models",
    "django.utils.translation",
    *(name.replace("/", ".") for name in PURE),
}


def modules(place: str) -> list[Path]:
    """Return the module or the package's modules at `place`, without migrations."""
    module = ROOT / f"{place}.py"
    files = [module] if module.exists() else sorted((ROOT / place).rglob("*.py"))
    return [file for file in files if "migrations" not in file.parts]


@dataclass
class Module:
    """What a file imports, at any depth, calls and opens."""

    imports: list[tuple[int, str]] = field(default_factory=list)
    """Lines and absolute dotted names."""
    calls: list[tuple[int, str, set[str | None]]] = field(default_factory=list)
    """Lines, dotted names and keywords."""
    databases: list[tuple[int, str]] = field(default_factory=list)
    """Lines and texts of every connection that is opened by a literal alias."""


@cache
def read(file: Path) -> Module:
    module = Module()
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import():
                module.imports += [(node.lineno, alias.name) for alias in node.names]
            case ast.ImportFrom():
                origin = package[: len(package) - node.level + 1] if node.level else ()
                source = ".".join([*origin, *([node.module] if node.module else [])])
                module.imports += [(node.lineno, f"{source}.{alias.name}") for alias in node.names]
            case ast.Call():
                keywords = {one.arg for one in node.keywords}
                module.calls.append((node.lineno, dotted(node.func), keywords))
            case ast.Subscript(value=ast.Name(id="connections"), slice=ast.Constant()):
                module.databases.append((node.lineno, ast.unparse(node)))
    return module


def dotted(node: ast.expr) -> str:
    """The name of what is called, without what is not part of a name: `.save` of `find(1).save`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{dotted(node.value)}.{node.attr}"
    return ""


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def present(place: str) -> list[Path]:
    files = modules(place)
    if not files:
        pytest.skip(f"there is no {place}")
    return files


@pytest.mark.parametrize(("place", "forbidden"), FORBIDDEN)
def test_no_import_against_the_arrows(place, forbidden):
    against = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in present(place)
        for line, name in read(file).imports
        if any(is_within(name, package) for package in forbidden)
    ]
    assert against == []


@pytest.mark.parametrize("place", PURE)
def test_pure_modules_import_only_data(place):
    impure = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in present(place)
        for line, name in read(file).imports
        if not any(is_within(name, package) for package in PURE_MAY_IMPORT)
    ]
    assert impure == []


def test_no_binding_imports_another():
    bindings = ROOT / "workers" / "bindings"
    crossing = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in present("workers/bindings")
        for line, name in read(file).imports
        if is_within(name, "workers.bindings")
        and not is_within(name, "workers.bindings.shared")
        and name.split(".")[2:3] != list(file.relative_to(bindings).with_suffix("").parts[:1])
    ]
    assert crossing == []


CLOCK = ROOT / "jobs" / "store" / "clock.py"
TRANSACTIONAL = {"atomic", "non_atomic_requests", "on_commit", "set_rollback"}
OF_PEOPLE_OR_OF_ONE_PROCESS = [
    # A site's tests without a database.
    ROOT / "jobs" / "store" / "memory.py",
    # A figure in Sentry, from workers that may have no database.
    ROOT / "jobs" / "sentry.py",
    # Log lines.
    ROOT / "workers" / "management" / "lines.py",
]


def of_the_default_database(file: Path) -> Iterator[str]:
    """Uses of the default database in `file`, which need not be that of the jobs."""
    for line, name in read(file).imports:
        if name == "django.db.connection":
            yield f"{line}: jobs.store.database.connection() is the jobs' own"
    for line, name in read(file).databases:
        yield f"{line}: {name}: jobs.store.database.alias() is the jobs' own"
    for line, name, keywords in read(file).calls:
        if name.startswith("transaction.") and name.rpartition(".")[2] in TRANSACTIONAL:
            if "using" not in keywords:
                yield f"{line}: {name} without `using`: jobs.store.database has it for the jobs"
        elif name.endswith(".sql_with_params"):
            yield f"{line}: {name} compiles for the default database: see database.compiled"


@pytest.mark.parametrize("app", ["jobs", "workers"])
@pytest.mark.slow
def test_nothing_forgets_in_which_database_the_jobs_are(app):
    forgetful = [
        f"{file.relative_to(ROOT)}:{what}"
        for file in present(app)
        for what in of_the_default_database(file)
    ]
    assert forgetful == []


OF_SITES = {
    ROOT / "tests" / "benchmarks",
    ROOT / "tests" / "campaign" / "site",
    ROOT / "tests" / "host_site",
    ROOT / "tests" / "shop",
}
"""Sites with one database, or with tables of their own."""


@pytest.mark.slow
def test_no_test_forgets_in_which_database_the_jobs_are():
    """It would pass if they are in the default database, and fail behind a router."""
    forgetful = [
        f"{file.relative_to(ROOT)}:{what}"
        for file in present("tests")
        if OF_SITES.isdisjoint(file.parents)
        for what in of_the_default_database(file)
    ]
    assert forgetful == []


def test_what_is_left_out_behind_a_router_is_there():
    """An outdated name would silently leave its tests in."""
    files = {file.stem for file in present("tests")}

    assert [name for name in LEFT_OUT if not (ROOT / "tests" / name).exists()] == []
    assert files >= OF_BOTH


@pytest.mark.parametrize("app", ["jobs", "workers"])
def test_no_rule_goes_by_the_clock_of_the_machine_that_asks(app):
    """`jobs.store.clock.now()` is the database's. A worker process may measure its own work."""
    exempt = [CLOCK, *OF_PEOPLE_OR_OF_ONE_PROCESS, *modules("workers/runtime")]
    own = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in present(app)
        if file not in exempt
        for line, name, _ in read(file).calls
        if name in ("timezone.now", "datetime.now", "datetime.utcnow", "time.time")
    ]
    assert own == []


@pytest.mark.parametrize(
    "source",
    [
        "from django.db import connection",
        "with transaction.atomic(): pass",
        "transaction.on_commit(print)",
        "transaction.non_atomic_requests(view)",
        'connections["default"]',
        "Job.objects.all().query.sql_with_params()",
    ],
)
def test_what_forgets_the_database_is_seen(monkeypatch, tmp_path, source):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text(source)

    assert len(list(of_the_default_database(module))) == 1


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import workers.models", "workers.models"),
        ("from jobs import models", "jobs.models"),
        ("from . import querysets", "jobs.engine.querysets"),
        ("from ..models import Job", "jobs.models.Job"),
        ("def late():\n    from .. import models", "jobs.models"),
    ],
)
def test_every_way_to_import_is_seen(monkeypatch, tmp_path, source, name):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    module = tmp_path / "jobs" / "engine" / "claim.py"
    module.parent.mkdir(parents=True)
    module.write_text(source)

    assert [found for _, found in read(module).imports] == [name]


CHANGED_IN_PLACE = re.compile(r"settings\.OJS(\[.+?\] = | \|= |\.(update|setdefault|pop)\()")


def test_no_test_changes_the_settings_for_those_after_it():
    """pytest-django puts the value back, and `|=` has changed that very value."""
    changes = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if CHANGED_IN_PLACE.search(line)
    ]
    assert changes == []
