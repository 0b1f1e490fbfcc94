# Everything happens in .venv, which each target makes or renews as needed.
#
#   make run      a server with demonstration workers and jobs    (ARGS="--help" shows its options)
#   make test     the whole test suite, on SQLite and on PostgreSQL, and its core behind a database router
#   make test-fast  without what starts processes or browsers, on SQLite: for while you work
#   make test-django6  what depends on Django's version, on Django 6; skipped where no Python is new enough
#   make test-sites  a small site in each of many conditions (a router, ATOMIC_REQUESTS, another
#                 user model, django-unfold, …) on two versions of Django (ARGS="--help" shows options)
#   make check    lint, format, types, layers, migrations, system checks, OpenAPI, architecture
#   make lock     write requirements*.lock anew, after a change of constraints.txt or pyproject.toml
#   make release-check  the files of a release, installed and upgraded to (docs/releasing.md)
#   make docs     the documentation as a site in build/docs, every link inside it checked
#                 (ARGS="-b linkcheck" asks for the links to other sites as well)
#   make pictures  the pictures of docs/operators.md anew, with Chromium   (ARGS="dashboard jobs": some)
#   make bench    the benchmarks                                  (ARGS="--help" shows their options)
#   make campaign breaks what can break, and accounts for every job: half an hour, as root for all of it
#                 (ARGS="--help" shows the options; docs/reliability.md)
#   make citus    cells on Citus: moved, measured, broken (ARGS="--source ../citus"; docs/scaling.md)
#   make clean    remove the environment and the caches; data/ stays, it may hold jobs

PYTHON ?= python3
# Three workers: the tests are short and mostly wait. `PYTEST_ARGS="-k claim"` runs
# a selection in one process. loadfile keeps what a file shares (a server, a browser) in one worker;
# the order is that of tests/conftest.py, long files first.
PYTEST_ARGS ?= -n 3 --dist loadfile --no-loadscope-reorder
ARGS ?=

# A check starts hundreds of processes, and each would compile the whole server again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed

# What `make lock` resolves with; it has an environment of its own.
UV ?= uv==0.13.8
# What a server needs, and no tests: the project's settings name django-q2.
SERVER_EXTRAS := server cloudevents encryption q2 metrics otlp pool rota schemas tasks
LOCK := pip compile pyproject.toml -c constraints.txt --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' --quiet

# A Django of its own, beside the one of constraints.txt: `make test-django6 DJANGO6='django~=6.0.0'`.
DJANGO6 ?= django~=6.1
DJANGO6_TESTS ?= tests/jobs tests/workers tests/browser tests/project tests/test_packaging.py tests/test_readme.py
BIN6 := .venv-django6/bin

.PHONY: help install run test test-fast test-django6 test-sites check lock docs pictures release-check bench campaign citus clean
.DEFAULT_GOAL := help

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

install: $(STAMP)
	@:

# Every file that is downloaded is one whose hash is known, the build tool included: what is
# installed of this repository itself is built with it, without isolation.
$(STAMP): pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no $(PYTHON) on this machine: install Python 3.11 or newer, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "This Python cannot make virtual environments: install its venv package first (Debian, Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

run: install
	$(BIN)/python manage.py quickstart $(ARGS)

# All three always run, so that one report shows them all. `router` is PostgreSQL with the jobs in a
# database of their own, behind a database router; what it leaves out is listed in tests/conftest.py,
# and runs on PostgreSQL as it is: `--rest`.
test: install
	@failed=""; \
	for database in sqlite router postgres; do \
		echo; echo "pytest on $$database"; \
		rest=""; if [ $$database = postgres ]; then rest=--rest; fi; \
		OJS_TEST_DATABASE=$$database $(BIN)/python -m pytest $(PYTEST_ARGS) $$rest || failed="$$failed $$database"; \
	done; \
	if [ -n "$$failed" ]; then echo "The tests failed on:$$failed" >&2; exit 1; fi

# `OJS_TEST_DATABASE=postgres make test-fast` runs the same tests on PostgreSQL.
test-fast: install
	$(BIN)/python -m pytest -q $(PYTEST_ARGS) -m "not slow and not browser and not conformance" --durations=10 $(ARGS)

# Not part of CI: its machine need not have two Pythons.
test-django6:
	@for python in $(PYTHON) python3.14 python3.13 python3.12 $(HOME)/.pyenv/versions/*/bin/python3; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "Skipped: Django 6 needs Python 3.12 or newer, and there is none here."; exit 0; fi; \
	set -e; \
	test -x $(BIN6)/python || "$$found" -m venv .venv-django6; \
	sed '/^django==/Id' constraints.txt > .venv-django6/constraints.txt; \
	$(BIN6)/python -m pip install --quiet --disable-pip-version-check -c .venv-django6/constraints.txt hatchling editables; \
	$(BIN6)/python -m pip install --quiet --disable-pip-version-check -c .venv-django6/constraints.txt --no-build-isolation -e '.[dev]' '$(DJANGO6)'; \
	$(BIN6)/python -c 'import django, platform; print("Django", django.__version__, "on Python", platform.python_version())'; \
	OJS_TEST_DATABASE=$${OJS_TEST_DATABASE:-sqlite} $(BIN6)/python -m pytest $(PYTEST_ARGS) $(DJANGO6_TESTS)

# Not part of CI: it installs packages that the tests do not have, and takes minutes.
# `OJS_TEST_DATABASE=postgres make test-sites` gives the sites PostgreSQL.
test-sites: install
	$(BIN)/python -m tests.sites $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python manage.py makemigrations --check --dry-run --settings tests.settings
	DJANGO_DEBUG=1 $(BIN)/python manage.py check
	$(BIN)/python manage.py openapi --check --settings tests.settings
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_openapi.py

# The versions of constraints.txt, for every platform and Python, with the hashes of all their files.
lock:
	@test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check '$(UV)'
	.venv-lock/bin/uv $(LOCK) --extra dev -o requirements.lock
	.venv-lock/bin/uv $(LOCK) $(SERVER_EXTRAS:%=--extra %) -o requirements-server.lock
	.venv-lock/bin/uv $(LOCK) --extra docs -o requirements-docs.lock

# An environment of its own: neither the server nor the tests need what builds a site.
docs:
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-docs.lock
	.venv-docs/bin/python -m sphinx -c docs --fail-on-warning --keep-going --fresh-env --quiet -b html $(ARGS) . build/docs
	@echo "The site is in build/docs/index.html."

release-check: install
	$(BIN)/python -m tests.release $(ARGS)

# Look at each before it is committed.
pictures: install
	$(BIN)/python -m tests.pictures $(ARGS)

bench: install
	$(BIN)/python -m tests.benchmarks $(ARGS)
	@test -n "$(ARGS)" || $(BIN)/python -m tests.benchmarks.agq
	@test -n "$(ARGS)" || $(BIN)/python -m tests.benchmarks.rota

# Not part of CI: it takes the machine for half an hour, and what it needs beyond ours is Debian's.
campaign: install
	$(BIN)/python -m tests.campaign $(ARGS)

# Not part of CI: it builds Citus from a folder with its source.
citus: install
	$(BIN)/python -m tests.citus $(ARGS)

clean:
	rm -rf .venv .venv-django6 .venv-docs .venv-lock .venv-sites .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
