"""Translation catalogues: the marked strings, the `.po` files, and the `.mo` files from them.

    python -m tests.translations     after marking a string: update the .po files, compile them

It needs no gettext on the machine. New strings are added to the `.po` files without a translation,
and `tests/test_translations.py` fails until each has one in every language.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import django
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_python
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.contrib import admin
from django.contrib.admin.utils import flatten, flatten_fieldsets
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("de", "es")
SOURCES = {"jobs": ("jobs", "ojs_project", "templates"), "workers": ("workers",)}
"""The apps' catalogues; the templates and the project are part of `jobs`."""
KEYWORDS = {
    "_": None,
    "gettext": None,
    "gettext_lazy": None,
    "gettext_noop": None,
    "ngettext": (1, 2),
    "ngettext_lazy": (1, 2),
    "pgettext": ((1, "c"), 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
}
SINCE = datetime(2026, 11, 1, tzinfo=UTC)
"""The date in the header: a real one would differ in files that are otherwise equal."""


@cache
def marked(app: str) -> Catalog:
    """Return all strings that the app marks, without translations."""
    found = Catalog(project="django-ojs", domain="django", creation_date=SINCE)
    for place in SOURCES[app]:
        for file in sorted((ROOT / place).rglob("*")):
            if file.suffix in (".py", ".html") and "migrations" not in file.parts:
                name = file.relative_to(ROOT).as_posix()
                for words, context in _strings(file):
                    found.add(words, locations=[(name, None)], context=context)
    for name in sorted(_labels(app)):
        found.add(name, locations=[(f"{app}/labels.py", None)])
    return found


def _strings(file: Path) -> Iterator[tuple[str | tuple[str, ...], str | None]]:
    source = file.read_text()
    if file.suffix == ".html":
        # Text between tags is blanked out, because its indentation would be significant in Python.
        lines = templatize(source, origin=str(file)).splitlines()
        source = "\n".join(line.strip() for line in lines)
    calls = extract_python(io.BytesIO(source.encode()), list(KEYWORDS), (), {})
    for _line, function, words, _comments in calls:
        texts = words if isinstance(words, tuple) else (words,)
        context = texts[0] if "pgettext" in function else None
        texts = texts[1:] if context else texts
        # A variable instead of a text is marked where it is defined.
        most = 2 if function.startswith("n") else 1
        if all(texts[:most]):
            yield texts[:most] if most == 2 else texts[0], context


def _labels(app: str) -> set[str]:
    """Names of fields that a page of the admin shows (`jobs/models/labels.py`)."""
    found = set()
    for model, page in admin.site._registry.items():
        if model.__module__.split(".")[0] != app:
            continue
        shown = flatten(
            [
                *page.list_display,
                *(name for name in page.list_filter if isinstance(name, str)),
                *flatten_fieldsets(page.fieldsets or ()),
                *(page.fields or ()),
                *getattr(getattr(page.form, "Meta", None), "fields", ()),
            ]
        )
        fields = {field.name: field for field in model._meta.fields}
        found |= {
            str(fields[name].verbose_name)
            for name in shown
            if name in fields and fields[name]._verbose_name is None
        }
    return found


def po_file(app: str, language: str) -> Path:
    return ROOT / app / "locale" / language / "LC_MESSAGES" / "django.po"


def translated(app: str, language: str) -> Catalog:
    with po_file(app, language).open("rb") as file:
        return read_po(file, locale=language, domain="django")


def compiled(catalogue: Catalog) -> bytes:
    file = io.BytesIO()
    write_mo(file, catalogue)
    return file.getvalue()


def update(app: str, language: str) -> None:
    """Rewrite the `.po` file with its translations, and the `.mo` beside it."""
    file = po_file(app, language)
    if file.exists():
        catalogue = translated(app, language)
    else:
        catalogue = Catalog(
            language,
            "django",
            header_comment="# Translations of django-ojs, under its license.",
            project="django-ojs",
            last_translator="django-ojs",
            language_team="django-ojs",
            creation_date=SINCE,
            revision_date=SINCE,
            fuzzy=False,
        )
    catalogue.msgid_bugs_address = ""
    catalogue.update(marked(app), no_fuzzy_matching=True, update_creation_date=False)
    catalogue.obsolete.clear()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        write_po(stream, catalogue, width=100, include_lineno=False, ignore_obsolete=True)
    file.with_suffix(".mo").write_bytes(compiled(translated(app, language)))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    admin.autodiscover()
    for app in SOURCES:
        for language in LANGUAGES:
            update(app, language)
