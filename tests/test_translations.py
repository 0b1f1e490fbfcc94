"""Admin in German and Spanish: complete translations, and pages in these languages."""

from __future__ import annotations

import ast
import gettext
import io
import re
from datetime import timedelta

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import translation

from jobs import engine
from jobs.admin import display
from jobs.record import dashboard
from tests.once import once_is_enough

from .factories import JobFactory, WorkerFactory
from .operators import choose, list_of, operator
from .translations import KEYWORDS, LANGUAGES, ROOT, SOURCES, compiled, marked, po_file, translated

pytestmark = once_is_enough

PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|\{\w*\}|%%")

every_catalogue = pytest.mark.parametrize(
    ("app", "language"), [(app, language) for app in SOURCES for language in LANGUAGES]
)


@pytest.fixture(autouse=True)
def _the_admin_is_known():
    admin.autodiscover()


def texts(words) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)


def entries(catalogue):
    return {(texts(entry.id), entry.context): entry for entry in catalogue if entry.id}


@every_catalogue
def test_every_marked_string_is_translated(app, language):
    """If it is not: `python -m tests.translations`, and translate the new strings."""
    written = entries(translated(app, language))

    assert set(written) == set(entries(marked(app)))
    assert [words for words, entry in written.items() if not all(texts(entry.string))] == []
    assert [words for words, entry in written.items() if entry.fuzzy] == []


@every_catalogue
def test_a_translation_has_the_placeholders_of_its_original(app, language):
    def placeholders(text: str) -> list[str]:
        return sorted(PLACEHOLDER.findall(text))

    different = []
    for entry in entries(translated(app, language)).values():
        originals, translations = texts(entry.id), texts(entry.string)
        assert len(originals) == len(translations)
        # A singular may omit its number; so may its translation.
        different += [
            (original, translation)
            for original, translation in zip(originals, translations, strict=True)
            if placeholders(original) != placeholders(translation)
        ]
    assert different == []


@every_catalogue
def test_what_is_compiled_is_what_is_written(app, language):
    file = po_file(app, language)
    with file.with_suffix(".mo").open("rb") as stream:
        found = gettext.GNUTranslations(stream)._catalog
    wanted = gettext.GNUTranslations(io.BytesIO(compiled(translated(app, language))))._catalog

    # Without the header, which names the generating program.
    assert {k: v for k, v in found.items() if k} == {k: v for k, v in wanted.items() if k}


def test_one_text_has_one_translation():
    """Both apps' catalogues are merged at run time, which would drop the other translation."""
    for language in LANGUAGES:
        ours, theirs = (entries(translated(app, language)) for app in SOURCES)
        both = ours.keys() & theirs.keys()
        assert both
        assert [w for w in both if ours[w].string != theirs[w].string] == []


@every_catalogue
def test_no_word_is_taken_from_another_app(app, language):
    """Catalogues are merged, and Django's own apps come first: such words need a context."""
    taken = []
    with translation.override(language):
        for entry in entries(translated(app, language)).values():
            one, *many = texts(entry.id)
            if many:
                found = tuple(translation.ngettext(one, *many, number) for number in (1, 2))
            elif entry.context:
                found = (translation.pgettext(entry.context, one),)
            else:
                found = (translation.gettext(one),)
            if found != texts(entry.string):
                taken.append((one, found))
    assert taken == []


def test_no_marked_string_hides_inside_an_f_string():
    """The extraction does not look there."""
    hidden = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for app in SOURCES
        for file in sorted((ROOT / app).rglob("*.py"))
        for string in ast.walk(ast.parse(file.read_text()))
        if isinstance(string, ast.JoinedStr)
        for call in ast.walk(string)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in KEYWORDS
    ]
    assert hidden == []


def ask(client, url: str, language: str) -> str:
    page = client.get(url, headers={"Accept-Language": language})
    assert page.status_code == 200
    assert page["Content-Language"] == language
    return page.content.decode()


def english_in(page: str, language: str) -> list[str]:
    """Our English texts on a page in another language, as a cell, a label or an item."""
    shown = {text.strip().rstrip(":").lower() for text in re.findall(r">([^<>]+)<", page)}
    ours = [entry for app in SOURCES for entry in translated(app, language) if entry.id]
    return sorted(
        text
        for entry in ours
        for text, other in zip(texts(entry.id), texts(entry.string), strict=True)
        if text.lower() in shown and text.lower() != other.lower()
    )


@pytest.fixture
def fleet():
    """A quiet worker with a job, and a queue whose job no worker may have."""
    worker = WorkerFactory(state="quiet", queues=["mail"])
    JobFactory(queue="mail", active=True, reserved_by=worker.pk)
    JobFactory(queue="slow")
    engine.pause("slow", paused_by="ops", reason="Migration")
    return worker


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("de", ["ruhend", "Soll-Zustand", "Auslastung", "Ausgewählte Worker beenden", "Labels"]),
        ("es", ["en reposo", "estado deseado", "ocupación", "Terminar los workers seleccionados"]),
        ("en", ["quiet", "desired state", "busy", "Terminate selected workers", "labels"]),
    ],
)
def test_the_list_of_workers_answers_in_the_language_asked_for(fleet, language, said):
    page = ask(operator(), list_of("ojs_workers_worker"), language)

    assert [word for word in said if word.lower() not in page.lower()] == []
    if language != "en":
        assert english_in(page, language) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("de", ["Handlungsbedarf", "„slow“ ist pausiert von ops", "Durchsatz"]),
        ("es", ["Atención", "«slow» está en pausa por ops", "Rendimiento"]),
        ("en", ["Attention", "“slow” has been paused by ops", "Throughput"]),
    ],
)
def test_the_dashboard_answers_in_the_language_asked_for(fleet, language, said):
    page = ask(operator(), list_of("ojs_workers_dashboard"), language)

    assert [word for word in said if word not in page] == []
    if language != "en":
        assert english_in(page, language) == []


@pytest.mark.parametrize(
    ("language", "count", "length"),
    [("de", "1.234", "1,5 s"), ("es", "1\xa0234", "1,5 s"), ("en", "1,234", "1.5 s")],
)
def test_numbers_have_the_marks_of_the_language(language, count, length):
    with translation.override(language):
        assert dashboard.grouped(1234) == count
        assert display.length(timedelta(seconds=1.5)) == length


@pytest.mark.django_db
def test_a_field_of_a_form_is_named_in_the_language_asked_for(fleet):
    """Names derived from attributes of the models, not from texts in the code."""
    client = operator()
    queue = reverse("admin:ojs_jobs_queue_change", args=["slow"])

    assert "Nebenläufigkeit:" in ask(client, queue, "de")
    assert "Concurrencia:" in ask(client, queue, "es")
    assert "Concurrency:" in ask(client, queue, "en")


@pytest.mark.django_db
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_page_is_half_english(fleet, language):
    """The lists, a job's page, a worker's page and a confirmation, none of them empty."""
    client = operator("view_operatoraction")
    job = JobFactory(dead=True, queue="mail")
    urls = [
        *(list_of(f"ojs_jobs_{model}") for model in ("job", "deadjob", "queue", "event")),
        reverse("admin:ojs_jobs_job_change", args=[job.pk]),
        reverse("admin:ojs_jobs_queue_change", args=["slow"]),
        reverse("admin:ojs_workers_worker_change", args=[quote(fleet.pk)]),
        reverse("admin:index"),
    ]
    client.cookies["django_language"] = language
    pages = {url: ask(client, url, language) for url in urls}
    pages["quiet"] = choose(client, "ojs_workers_worker", "terminate", fleet).content.decode()

    left = {url: english_in(page, language) for url, page in pages.items()}
    assert {url: words for url, words in left.items() if words} == {}


@pytest.mark.django_db
def test_programs_are_answered_in_english_after_any_other_language(fleet):
    client = operator()
    ask(client, list_of("ojs_jobs_job"), "de")

    refusal = client.put("/ojs/v1/health", headers={"Accept-Language": "de"})

    assert translation.get_language() == "en-us"
    assert "erlaubt" not in refusal.content.decode()


@pytest.mark.django_db
def test_a_language_that_is_not_shipped_gets_english(fleet):
    page = operator().get(list_of("ojs_workers_worker"), headers={"Accept-Language": "fr"})

    assert page["Content-Language"] == "en"
    assert "Terminate selected workers" in page.content.decode()
