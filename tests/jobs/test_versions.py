"""Versions of jobs: parsed, stored and compared (OJS job versioning §5, §8.1, §15)."""

from __future__ import annotations

import re

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

import jobs
from jobs import engine
from jobs.errors import DuplicateJob, InvalidRequest
from jobs.models import Job
from jobs.spec.envelope import envelope
from jobs.spec.validation import new_job
from jobs.spec.versions import Versions, read_versions, version_number, version_text
from jobs.task_options import task_options
from tests.factories import JobFactory
from workers.runtime.handlers import handler


def number(text: str) -> int:
    found = version_number(text)
    assert found is not None
    return found


def made(**document):
    (job,) = engine.enqueue([new_job({"type": "t", "args": []} | document, timezone.now())])
    return job


# A version (§5.1)


def test_versions_sort_by_major_then_minor_and_not_as_texts():
    versions = ["0", "0.1", "0.10", "1.0", "1.9", "1.10", "2.0", "10.0", "999999999.999999999"]

    numbers = [number(version) for version in versions]

    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2**63, "it must fit into the column"


def test_a_whole_number_a_major_version_and_a_patch_level_say_the_same():
    assert number("2") == number("2.0") == number("2.0.7") == version_number(2)
    assert version_text(number("2.10.7")) == "2.10"


@pytest.mark.parametrize(
    "sent", ["", "v2", "2.", ".2", "1.2.3.4", "2.0-rc1", "01.0", "-1", "1e3", "1234567890", -1]
)
def test_what_is_no_version_is_refused_by_name(sent):
    assert version_number(sent) is None
    with pytest.raises(InvalidRequest) as refusal:
        new_job({"type": "t", "args": [], "version": sent}, timezone.now())
    assert refusal.value.details["field"] == "version"


@pytest.mark.parametrize("sent", [2.5, True, [], {}])
def test_a_version_is_a_text_or_a_whole_number(sent):
    with pytest.raises(InvalidRequest, match=re.escape(f"such as '2.0', not {sent}.")):
        new_job({"type": "t", "args": [], "version": sent}, timezone.now())


# A range of versions (§8.1, §15.1)


@pytest.mark.parametrize(
    ("said", "inside", "outside", "shown"),
    [
        ("*", "0.0 1.0 99.9", "", "*"),
        ("2.0", "2.0 2", "1.9 2.1", "2.0"),
        ("2", "2.0", "2.1", "2.0"),
        (">=1.0 <3.0", "1.0 1.9 2.99", "0.9 3.0 10.0", ">=1.0 <3.0"),
        (">=1.0, <3.0", "1.0 2.99", "0.9 3.0", ">=1.0 <3.0"),
        ("  >= 1.0,<3  ", "1.0 2.99", "0.9 3.0", ">=1.0 <3.0"),
        (">=2.0", "2.0 2.10 30.0", "1.99", ">=2.0"),
        ("<2.1", "0.0 2.0", "2.1", "<2.1"),
        (">=1.0 >=1.5 <3.0 <2.0", "1.5 1.9", "1.4 2.0", ">=1.5 <2.0"),
    ],
)
def test_a_range_has_the_versions_between_its_bounds(said, inside, outside, shown):
    versions = read_versions(said)

    assert [text for text in inside.split() if number(text) not in versions] == []
    assert [text for text in outside.split() if number(text) in versions] == []
    assert None in versions, "a job without a version goes to everybody (§8.2)"
    assert str(versions) == shown
    assert read_versions(str(versions)) == versions


@pytest.mark.parametrize(
    "said",
    ["", " ", "^1.0", "~1.0", ">1.0", "<=2.0", "1.0 2.0", ">=", ">=1.0<3.0", "* <2.0", ">=x"],
)
def test_what_is_no_range_is_refused(said):
    with pytest.raises(ValueError, match="range"):
        read_versions(said)


@pytest.mark.parametrize("said", [">=3.0 <2.0", ">=2.0 <2.0", "<0.0"])
def test_a_range_that_leaves_no_version_is_a_mistake(said):
    with pytest.raises(ValueError, match="No version"):
        read_versions(said)


# On a job (§5.2, §5.3)


@pytest.mark.parametrize("sent", ["2.1", "2", "2.1.0", 3, 0])
def test_a_job_keeps_its_version_as_it_was_sent(db, sent):
    job = made(version=sent)

    row = Job.objects.get(pk=job.id)
    assert row.version_number == version_number(sent)
    assert envelope(job)["version"] == envelope(row)["version"] == sent


def test_a_type_may_name_the_version(db):
    row = Job.objects.get(pk=made(type="invoice.generate@2.0").id)

    assert (row.type, row.version_number) == ("invoice.generate", number("2.0"))
    assert envelope(row)["version"] == "2.0"


@pytest.mark.parametrize("document", [{"version": "3.0"}, {"options": {"version": "3.0"}}])
def test_the_member_counts_before_the_type(db, document):
    row = Job.objects.get(pk=made(type="invoice.generate@2.0", **document).id)

    assert (row.type, row.version_number) == ("invoice.generate", number("3.0"))
    assert envelope(row)["version"] == "3.0"


@pytest.mark.parametrize("sent", ["t@", "t@x", "@2.0", "t@2.0@3.0", "t@2.0.", "t@ 2.0"])
def test_a_type_with_something_else_behind_it_is_refused(sent):
    with pytest.raises(InvalidRequest) as refusal:
        new_job({"type": sent, "args": []}, timezone.now())
    assert refusal.value.details["field"] == "type"


@pytest.mark.parametrize("document", [{}, {"version": None}])
def test_a_job_need_not_have_a_version(db, document):
    row = Job.objects.get(pk=made(**document).id)

    assert row.version_number is None
    assert "version" not in envelope(row)


def test_jobs_of_a_batch_keep_their_own_versions(db):
    batch = [{"type": "t", "args": [], "version": version} for version in ("1.0", "2.0", "2.0")]

    found = jobs.enqueue_many([*batch, {"type": "t"}])

    rows = Job.objects.in_bulk()
    assert [rows[job.id].version_number for job in found] == [
        *map(number, ["1.0", "2.0", "2.0"]),
        None,
    ]


def test_python_code_says_the_version_as_an_option(db):
    one = jobs.enqueue("email.send", ["x"], version="2.1")
    other = jobs.enqueue("email.send@2.1", ["x"])

    stored = Job.objects.values_list("version_number", flat=True)
    assert list(stored) == [number("2.1")] * 2
    assert one.type == other.type == "email.send"


# Uniqueness (§15.5)


def unique(version, **policy):
    return made(version=version, unique={"on_conflict": "reject"} | policy)


def test_jobs_of_different_versions_are_different_jobs_by_default(db):
    unique("1.0")
    unique("2.0")
    unique(None)

    with pytest.raises(DuplicateJob):
        unique("2")
    with pytest.raises(DuplicateJob):
        unique(None)


def test_a_policy_that_names_its_dimensions_says_whether_the_version_is_one(db):
    unique("1.0", keys=["type", "args"])
    with pytest.raises(DuplicateJob):
        unique("2.0", keys=["type", "args"])

    unique("1.0", keys=["type", "args", "version"])
    unique("2.0", keys=["type", "args", "version"])


# Version ranges of a fetch (§8.2), without a worker


ROUTES = {
    "anything": ({}, {"none", "a1.0", "a1.9", "a2.0", "b1.0"}),
    "one version": ({"a": "1.9"}, {"none", "a1.9", "b1.0"}),
    "a range": ({"a": ">=1.5 <3.0"}, {"none", "a1.9", "a2.0", "b1.0"}),
    "from on": ({"a": ">=2.0"}, {"none", "a2.0", "b1.0"}),
    "up to": ({"a": "<2.0"}, {"none", "a1.0", "a1.9", "b1.0"}),
    "two types": ({"a": "3.0", "b": "2.0"}, {"none"}),
}


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("state", ["available", "due", "limited"])
def test_a_fetch_takes_the_versions_it_is_asked_for(db, name, state):
    asked, expected = ROUTES[name]
    states = {
        "available": {},
        "due": {"state": "scheduled", "scheduled_at": timezone.now()},
        "limited": {"rate_key": "key"},
    }
    if state == "limited":
        jobs.enqueue("other", rate_limit={"key": "key", "concurrency": 100})
        Job.objects.all().delete()
    for kind, version in (("a", None), ("a", "1.0"), ("a", "1.9"), ("a", "2.0"), ("b", "1.0")):
        JobFactory(
            type=kind,
            version_number=version and number(version),
            tags=[f"{kind}{version}" if version else "none"],
            **states[state],
        )

    found = engine.claim(
        ["default"],
        count=10,
        versions={kind: list(read_versions(said)) for kind, said in asked.items()},
    )

    taken = Job.objects.filter(pk__in=[job.id for job in found])
    assert {row.tags[0] for row in taken} == expected


# From Python


def test_a_handler_with_a_wrong_range_is_refused_when_it_is_declared():
    with pytest.raises(ImproperlyConfigured, match="versions"):
        handler("tests.versions", versions="^2.0")(lambda context: None)
    with pytest.raises(ImproperlyConfigured, match="versions"):
        task_options(versions=">=3.0 <2.0")(lambda: None)
    with pytest.raises(ImproperlyConfigured, match=r"no version such as"):
        task_options(version="latest")(lambda: None)


def test_bounds_travel_as_two_numbers():
    bounds = list(read_versions(">=1.0 <3.0"))

    assert bounds == [number("1.0"), number("3.0")]
    assert str(Versions(*bounds)) == ">=1.0 <3.0"
